"""`tridal.types`: public types for backend plugins."""

from tridal.devices.backend import UPGRADES
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
    round_rows,
)

__all__ = [
    "ITEMSIZE", "Backend", "BackendBase", "DeviceProperties", "LaunchPlan", "Layout", "Option", "Probe", "Problem",
    "KernelConfig", "Resources", "Schedule", "next_power_of_2", "round_rows",
]  # fmt: skip
__dir__ = __all__.copy


def __getattr__(name: str) -> object:
    if name == "with_row_range":  # a backend of protocol 1 imports it before its protocol can be checked
        raise ImportError(f"tridal.types has no {name}, which belongs to protocol 1 of backends: {UPGRADES[1]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
