"""The interpreter backend: the shared kernels as Python, on CPU tensors, for debugging and for proof."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tridal.devices.types import DeviceProperties, LaunchPlan, Option, Probe, Problem, Resources, Tile

LARGEST_TILE = 1 << 20  # elements: the most that Triton allows in one tensor


class Interpreter:
    """Serves CPU tensors when asked for by name. Its time goes by operations, not elements: few, big tiles."""

    name = "interpreter"
    device_type = "cpu"
    dtypes = frozenset({"float16", "bfloat16", "float32", "float64"})
    algorithms = frozenset({"tile", "looped", "edges", "rereads", "masked"})
    interpreted = True
    options: Mapping[str, Option] = {
        "num_programs": Option(
            default=4,
            expected="a positive integer",
            accepts=lambda value: isinstance(value, int) and not isinstance(value, bool) and value > 0,
            help="programs of a launch, one after the other; more cost time and show how rows are shared out",
        )
    }
    install = "pip install 'tridal[interpreter]'"

    def unavailable(self) -> str | None:
        """Says which of the packages that the interpreter needs is missing."""
        missing = [name for name in ("triton", "numpy") if importlib.util.find_spec(name) is None]
        return f"not installed: {', '.join(missing)}" if missing else None

    def device_count(self) -> int:
        """One: this process."""
        return 1

    def properties(self, index: int) -> DeviceProperties:
        """The machine's processor; a program runs alone, so no other number limits it."""
        return DeviceProperties(
            name=f"Triton interpreter on {platform.machine()}", arch="interpreter", cores=1, core_name="process"
        )

    def architectures(self) -> Mapping[str, DeviceProperties]:
        """Only itself."""
        return {"interpreter": self.properties(0)}

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """As many whole rows in a tile as Triton allows; column tiles of that size for rows that are wider."""
        cols = 1 << (problem.cols - 1).bit_length()
        if cols > LARGEST_TILE:
            tile = Tile("looped", rows=1, cols=LARGEST_TILE)
        else:
            tile = Tile("tile", rows=min(1 << (problem.inner - 1).bit_length(), LARGEST_TILE // cols), cols=cols)
        tiles = problem.tiles(tile.rows)
        programs = min(tiles, options["num_programs"])
        return LaunchPlan(
            tile,
            programs,
            reason=(
                f"interpreted time goes by operations: tiles of {tile.rows} x {tile.cols}, at most {LARGEST_TILE} "
                f"elements; {tiles} tiles, so {programs} of at most {options['num_programs']} programs"
            ),
        )

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """Nothing is compiled."""
        raise NotImplementedError("the interpreter compiles nothing")

    def stream(self, index: int) -> int:
        """No streams: a launch is done when it returns."""
        return 0

    def guard(self, index: int) -> AbstractContextManager[Any]:
        """Nothing to switch."""
        return nullcontext()


backend = Interpreter()
