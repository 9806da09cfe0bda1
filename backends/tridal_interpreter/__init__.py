"""The interpreter backend: runs the kernels as Python code on CPU tensors, for debugging and for tests."""

from __future__ import annotations

import importlib.util
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from tridal.devices.types import (
    KERNEL_CONFIG,
    BackendBase,
    DeviceProperties,
    KernelConfig,
    LaunchPlan,
    Option,
    Probe,
    Problem,
    next_power_of_2,
)

_MAX_TILE_ELEMENTS = 1 << 20  # Triton's limit for a tensor in a kernel


class Interpreter(BackendBase):
    """Serves CPU tensors if it is requested by name. Large tiles save time, because every operation is slow."""

    protocol = 2
    name = "interpreter"
    device_type = "cpu"
    dtypes = frozenset({"float16", "bfloat16", "float32", "float64"})
    schedules = frozenset({"whole_row", "column_loop"})
    features = frozenset({"peel", "reload", "lanes", "rest_cols", "scale_mask"})
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
    devices: Mapping[str, DeviceProperties] = {
        # Programs run one after another, so memory does not limit them, and none can wait for another one.
        "interpreter": DeviceProperties(
            f"Triton interpreter on {platform.machine()}", "interpreter", 1, max_programs=1, core_name="process"
        )
    }

    def unavailable(self) -> str | None:
        """Names the packages that are missing or do not work together."""
        missing = [name for name in ("triton", "numpy") if importlib.util.find_spec(name) is None]
        if missing:
            return f"not installed: {', '.join(missing)}"
        triton, numpy = _triton_version(), metadata.version("numpy")
        if triton is not None and _minor(triton) < (3, 7) and _minor(numpy) >= (2, 4):
            return (
                f"the interpreter of Triton {triton} does not work with NumPy {numpy}: "
                "run pip install 'numpy<2.4', or use Triton 3.7 or newer"
            )
        return None

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """Plans a few large tiles. Nothing is compiled, so `probe` is not used."""
        return _plan(problem, options["num_programs"], options.get(KERNEL_CONFIG))


def _plan(problem: Problem, most_programs: int, config: KernelConfig | None = None) -> LaunchPlan:
    """Plans `whole_row` with the largest possible tiles, or `column_loop` if a row does not fit in a tile."""
    if config is None:
        cols = next_power_of_2(problem.cols, _MAX_TILE_ELEMENTS)
        rows = next_power_of_2(problem.inner, _MAX_TILE_ELEMENTS // cols)
        config = KernelConfig("column_loop" if problem.cols > cols else "whole_row", rows, cols)
    tiles = problem.tiles(config.rows)
    programs = f"at most {most_programs} programs" if config.persistent else "one program per tile"
    reason = (
        f"the interpreter's time depends on the number of operations: tiles of {config.rows} x {config.cols}, "
        f"at most {_MAX_TILE_ELEMENTS} elements; {tiles} tiles: {programs}"
    )
    return LaunchPlan(config, most_programs if config.persistent else None, reason)


def _triton_version() -> str | None:
    """Finds the version of Triton without importing it. Several distributions provide it under different names."""
    spec = importlib.util.find_spec("triton")
    source = "" if spec is None or spec.origin is None else Path(spec.origin).read_text()
    found = re.search(r"""^__version__ = ['"](\d+\.\d+[^'"]*)""", source, re.MULTILINE)
    return found and found[1]


def _minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


backend = Interpreter()
