"""A toy backend: CPU tensors in Triton's interpreter, a few rows at a time."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext

from tridal.types import DeviceProperties, LaunchPlan, Option, Resources, Tile


class Toy:
    name = "toy"
    device_type = "cpu"
    dtypes = frozenset({"float32"})
    algorithms = frozenset({"tile"})
    interpreted = True
    options = {  # noqa: RUF012
        "rows": Option(
            default=4,
            expected="1, 2, 4 or 8",
            accepts=lambda value: type(value) is int and value in (1, 2, 4, 8),
            help="rows of a tile",
        )
    }
    install = "pip install tridal-toy triton numpy"

    def unavailable(self):
        return None if importlib.util.find_spec("triton") else "not installed: triton"

    def device_count(self):
        return 1

    def properties(self, index):
        return DeviceProperties(name="Toy", arch="toy1", cores=2)

    def architectures(self):
        return {"toy1": self.properties(0)}

    def plan(self, problem, device, probe, options):
        tile = Tile("tile", rows=options["rows"], cols=1 << (problem.cols - 1).bit_length())
        return LaunchPlan(tile, programs=device.cores, reason=f"a toy takes {options['rows']} rows at a time")

    def resources(self, asm, shared_memory):
        return Resources(registers=0, spills=0, shared_memory=0)

    def stream(self, index):
        return 0

    def guard(self, index):
        return nullcontext()


backend = Toy()
