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
    new_name,
    next_power_of_2,
    with_row_range,
)

__all__ = [
    "ITEMSIZE", "Backend", "BackendBase", "DeviceProperties", "LaunchPlan", "Layout", "Option", "Probe", "Problem",
    "KernelConfig", "Resources", "Schedule", "next_power_of_2", "with_row_range",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if hint := new_name(name):
        # `from tridal.types import` drops the message of an AttributeError, but not of an ImportError.
        raise ImportError(f"module {__name__!r} has no name {name!r}{hint}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
