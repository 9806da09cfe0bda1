"""One NPU of each kind, for plans on machines without that NPU, and sizes of the unified buffer by device name.

Sources: vector cores, L2 cache and memory are from the platform files of CANN (`data/platform_config/*.ini`). The size
of the unified buffer is the size that AscendNPU-IR's allocator uses.
"""

from __future__ import annotations

from collections.abc import Mapping

from tridal.devices.types import DeviceProperties

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30

SMALLEST_UNIFIED_BUFFER = 192 * _KIB
"""Bytes per vector core. Devices with an unknown name are assumed to have this size."""

_UNIFIED_BUFFERS = {
    "Ascend910B": 192 * _KIB,
    "Ascend910_93": 192 * _KIB,
    "Ascend910_95": 248 * _KIB,
    "Ascend950": 248 * _KIB,
}


def unified_buffer_of(name: str) -> int:
    """Bytes of a vector core's unified buffer. `name` is the driver's name of the device, say "Ascend910B2C"."""
    return next((size for kind, size in _UNIFIED_BUFFERS.items() if name.startswith(kind)), SMALLEST_UNIFIED_BUFFER)


def _npu(arch: str, name: str, cores: int, gib: int) -> DeviceProperties:
    return DeviceProperties(
        name=name,
        arch=arch,
        cores=cores,
        core_name="vector core",
        target=("npu", name, 0),
        shared_memory=unified_buffer_of(name),
        l2_cache=192 * _MIB,
        memory=gib * _GIB,
    )


_NPUS = (
    _npu("ascend910b", "Ascend910B1", cores=48, gib=64),
    _npu("ascend910b1", "Ascend910B1", cores=48, gib=64),
    _npu("ascend910b2", "Ascend910B2", cores=48, gib=64),
    _npu("ascend910b3", "Ascend910B3", cores=40, gib=64),
    _npu("ascend910b4", "Ascend910B4", cores=40, gib=32),
    _npu("ascend910_93", "Ascend910_9382", cores=48, gib=64),
    _npu("ascend910_9382", "Ascend910_9382", cores=48, gib=64),
    _npu("ascend950", "Ascend910_9589", cores=64, gib=128),
)

ARCHITECTURES: Mapping[str, DeviceProperties] = {npu.arch: npu for npu in _NPUS}
"""By the driver's name in lower case. The first entry is the default where one architecture is needed."""
