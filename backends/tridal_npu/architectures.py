"""Properties of NPUs, and example NPUs for plans on machines without one.

The number of vector cores, the L2 cache and the memory are from CANN's platform files (`data/platform_config/*.ini`).
The size of the unified buffer is the one that AscendNPU-IR's allocator uses.
"""

from __future__ import annotations

from collections.abc import Mapping

from tridal.devices.types import DeviceProperties

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30

SMALLEST_UNIFIED_BUFFER = 192 * _KIB
"""Bytes per vector core. Devices with an unknown name are assumed to have this size."""


def unified_buffer_of(name: str) -> int:
    """Looks up the bytes of a vector core's unified buffer by the driver's name, for example "Ascend910B2C"."""
    return 248 * _KIB if name.startswith(("Ascend910_95", "Ascend950")) else SMALLEST_UNIFIED_BUFFER


def npu_properties(arch: str, name: str, cores: int, memory: int, l2_cache: int = 192 * _MIB) -> DeviceProperties:
    """Describes an NPU with `cores` vector cores. `name` is the driver's name. Sizes are in bytes."""
    target, unified_buffer = ("npu", name, 0), unified_buffer_of(name)
    return DeviceProperties(
        name, arch, cores, "vector core", target, shared_memory=unified_buffer, l2_cache=l2_cache, memory=memory,
        aliases=(arch.removeprefix("ascend"),),
    )  # fmt: skip


_NPUS = (
    npu_properties("ascend910b", "Ascend910B1", 48, 64 * _GIB),
    npu_properties("ascend910b1", "Ascend910B1", 48, 64 * _GIB),
    npu_properties("ascend910b2", "Ascend910B2", 48, 64 * _GIB),
    npu_properties("ascend910b3", "Ascend910B3", 40, 64 * _GIB),
    npu_properties("ascend910b4", "Ascend910B4", 40, 32 * _GIB),
    npu_properties("ascend910_93", "Ascend910_9382", 48, 64 * _GIB),
    npu_properties("ascend910_9382", "Ascend910_9382", 48, 64 * _GIB),
    npu_properties("ascend950", "Ascend910_9589", 64, 128 * _GIB),
)

ARCHITECTURES: Mapping[str, DeviceProperties] = {device.arch: device for device in _NPUS}
"""Example NPUs by architecture: a driver's name in lower case. `tridal check` plans for the first entry."""
