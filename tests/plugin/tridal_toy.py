"""A toy backend: runs CPU tensors in Triton's interpreter, at most 1024 rows per tile."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext

from tridal.types import DeviceProperties, KernelConfig, LaunchPlan, Option, Resources

WIDEST = 1 << 20  # elements; Triton allows no larger tile


class Toy:
    name = "toy"
    device_type = "cpu"
    dtypes = frozenset({"float32"})
    schedules = frozenset({"whole_row", "column_loop"})
    interpreted = True
    options = {  # noqa: RUF012
        "rows": Option(
            default=1024,
            expected="a power of two",
            accepts=lambda value: type(value) is int and value > 0 and value & (value - 1) == 0,
            help="maximum number of rows in a tile",
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
        cols = 1 << (problem.cols - 1).bit_length()
        if cols > WIDEST:
            config = KernelConfig("column_loop", 1, WIDEST)
            return LaunchPlan(config, programs=device.cores, reason="a row is wider than a tile")
        rows = min(options["rows"], WIDEST // cols)
        config = KernelConfig("whole_row", rows, cols)
        return LaunchPlan(config, programs=device.cores, reason=f"a toy takes {rows} rows at a time")

    def resources(self, asm, shared_memory):
        return Resources(registers=0, spills=0, shared_memory=0)

    def stream(self, index):
        return 0

    def guard(self, index):
        return nullcontext()


backend = Toy()
