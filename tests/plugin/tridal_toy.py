"""A toy backend: runs CPU tensors in Triton's interpreter."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from tridal.types import (
    BackendBase,
    DeviceProperties,
    KernelConfig,
    LaunchPlan,
    Option,
    Probe,
    Problem,
    next_power_of_2,
)

WIDEST = 1 << 20  # elements; Triton allows no larger tile


def is_power_of_2(value: object) -> bool:
    return type(value) is int and value > 0 and value & (value - 1) == 0


class Toy(BackendBase):
    protocol = 2
    name = "toy"
    device_type = "cpu"
    interpreted = True
    devices: Mapping[str, DeviceProperties] = {
        "toy1": DeviceProperties(name="Toy", arch="toy1", cores=2)
    }

    def plan(
        self,
        problem: Problem,
        device: DeviceProperties,
        probe: Probe,
        options: Mapping[str, Any],
    ) -> LaunchPlan:
        cols = next_power_of_2(problem.cols)
        if cols > WIDEST:
            config = KernelConfig("column_loop", 1, WIDEST)
            reason = "a row is wider than a tile"
        else:
            rows = min(options["rows"], WIDEST // cols)
            config = KernelConfig("whole_row", rows, cols)
            reason = f"a toy takes {rows} rows at a time"
        return LaunchPlan(config, programs=device.cores, reason=reason)

    # The rest replaces defaults of the base class.
    dtypes = frozenset({"float32"})
    options: Mapping[str, Option] = {
        "rows": Option(
            default=1024,
            expected="a power of two",
            accepts=is_power_of_2,
            help="maximum number of rows in a tile",
        )
    }
    install = "pip install tridal-toy triton numpy"

    def unavailable(self) -> str | None:
        if importlib.util.find_spec("triton"):
            return None
        return "not installed: triton"


backend = Toy()
