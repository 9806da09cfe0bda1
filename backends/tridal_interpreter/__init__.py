"""The interpreter backend: runs the kernels as Python code on CPU tensors, for debugging and for tests."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tridal.devices.types import DeviceProperties, KernelConfig, LaunchPlan, Option, Probe, Problem, Resources

_LARGEST_TILE = 1 << 20  # elements; Triton allows no larger tensor in a kernel


class Interpreter:
    """Serves CPU tensors if it is requested by name. Time depends on the number of operations: tiles are large."""

    name = "interpreter"
    device_type = "cpu"
    dtypes = frozenset({"float16", "bfloat16", "float32", "float64"})
    schedules = frozenset({"whole_row", "column_loop", "peel", "reload", "scale_mask"})
    interpreted = True
    options: Mapping[str, Option] = {
        "num_programs": Option(
            default=4,
            expected="a positive integer",
            accepts=lambda value: type(value) is int and value > 0,
            help="number of programs of a launch; they run one after another",
        )
    }
    install = "pip install 'tridal[interpreter]'"

    def unavailable(self) -> str | None:
        """The missing packages; None if nothing is missing."""
        missing = [name for name in ("triton", "numpy") if importlib.util.find_spec(name) is None]
        return f"not installed: {', '.join(missing)}" if missing else None

    def device_count(self) -> int:
        """Always 1."""
        return 1

    def properties(self, index: int) -> DeviceProperties:
        """The machine's processor. Programs run one at a time, so nothing limits them."""
        return DeviceProperties(f"Triton interpreter on {platform.machine()}", "interpreter", 1, core_name="process")

    def architectures(self) -> Mapping[str, DeviceProperties]:
        """The only architecture."""
        return {"interpreter": self.properties(0)}

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """Plans tiles of as many whole rows as Triton allows, and `column_loop` for rows that are wider than a tile."""
        cols = min(_next_power_of_2(problem.cols), _LARGEST_TILE)
        rows = min(_next_power_of_2(problem.inner), _LARGEST_TILE // cols)
        config = KernelConfig("column_loop" if problem.cols > cols else "whole_row", rows, cols)
        tiles, most_programs = problem.tiles(rows), options["num_programs"]
        programs = min(tiles, most_programs)
        reason = (
            f"the interpreter's time depends on the number of operations: tiles of {rows} x {cols}, "
            f"at most {_LARGEST_TILE} elements; {tiles} tiles: {programs} of at most {most_programs} programs"
        )
        return LaunchPlan(config, programs, reason)

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """Not supported, because nothing is compiled."""
        raise NotImplementedError("the interpreter compiles nothing")

    def stream(self, index: int) -> int:
        """0: there are no streams. A launch has finished when it returns."""
        return 0

    def guard(self, index: int) -> AbstractContextManager[Any]:
        """An empty context: there is one device."""
        return nullcontext()


def _next_power_of_2(value: int) -> int:
    return 1 << (value - 1).bit_length()


backend = Interpreter()
