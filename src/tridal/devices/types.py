"""The frozen data that the layers exchange, and the protocol of a backend. Imports the standard library only.

A tensor gives a `Problem`. A backend's `DeviceProperties` and its `plan` give a `LaunchPlan`. The runtime launches it.
"""

from tridal.devices.backend import KERNEL_CONFIG, PROTOCOLS, Backend, BackendBase, Option, Probe
from tridal.devices.plans import (
    FEATURES,
    MAX_PROGRAMS,
    SCHEDULES,
    KernelConfig,
    LaunchPlan,
    Resources,
    Schedule,
)
from tridal.devices.problem import (
    ALIGNMENT,
    DTYPE_ALIASES,
    ITEMSIZE,
    MAX_32_BIT_ELEMENTS,
    MAX_32_BIT_ROWS,
    MAX_TILE,
    DeviceProperties,
    Layout,
    Problem,
    Target,
    find_architecture,
    next_power_of_2,
    round_rows,
    row_bucket,
)

__all__ = [
    "ALIGNMENT", "DTYPE_ALIASES", "FEATURES", "ITEMSIZE", "KERNEL_CONFIG", "MAX_32_BIT_ELEMENTS", "MAX_32_BIT_ROWS",
    "MAX_PROGRAMS", "MAX_TILE", "PROTOCOLS", "SCHEDULES", "Backend", "BackendBase", "DeviceProperties", "KernelConfig",
    "LaunchPlan", "Layout", "Option", "Probe", "Problem", "Resources", "Schedule", "Target", "find_architecture",
    "next_power_of_2", "round_rows", "row_bucket",
]  # fmt: skip
