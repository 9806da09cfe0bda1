"""`tridal.types`: public types for backend plugins."""

from tridal.devices.types import (
    ITEMSIZE,
    Backend,
    BackendBase,
    DeviceProperties,
    KernelConfig,
    LaunchPlan,
    Layout,
    Option,
    Probe,
    Problem,
    Resources,
    Schedule,
    next_power_of_2,
    with_row_range,
)

__all__ = [
    "ITEMSIZE", "Backend", "BackendBase", "DeviceProperties", "LaunchPlan", "Layout", "Option", "Probe", "Problem",
    "KernelConfig", "Resources", "Schedule", "next_power_of_2", "with_row_range",
]  # fmt: skip
__dir__ = __all__.copy
