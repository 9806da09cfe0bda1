"""The types that a backend plugin uses, under their documented name `tridal.types`."""

from tridal.devices.types import (
    ITEMSIZE,
    Backend,
    DeviceProperties,
    LaunchPlan,
    Layout,
    Option,
    Probe,
    Problem,
    Resources,
    Tile,
)

__all__ = [
    "ITEMSIZE", "Backend", "DeviceProperties", "LaunchPlan", "Layout", "Option", "Probe", "Problem", "Resources",
    "Tile",
]  # fmt: skip
