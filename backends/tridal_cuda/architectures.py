"""Properties of the GPUs in this machine, and of example GPUs: one for each compute capability, two for sm_90.

For the examples, the limits of a multiprocessor are from the table "Technical Specifications per Compute Capability" of
NVIDIA's CUDA C++ Programming Guide. The number of multiprocessors, the L2 cache, the memory and its bandwidth are from
data sheets. The bandwidths of H100 and H200 are those that the driver reports.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from tridal.devices.types import DeviceProperties

_KIB, _MIB, _GIB, _GB = 1 << 10, 1 << 20, 1 << 30, 10**9


def _gpu(
    capability: int, name: str, cores: int, *limits: int | None, arch: str = "", aliases: tuple[str, ...] = ()
) -> DeviceProperties:
    """`limits` are the fields of `DeviceProperties` from `registers` to `bandwidth`.

    By default, `arch` is nvcc's name of the compute capability.
    """
    target = ("cuda", capability, 32)
    return DeviceProperties(name, arch or f"sm_{capability}", cores, "SM", target, 32, *limits, aliases=aliases)


_SM_90, _SM_120 = (65_536, 227 * _KIB, 2048, 32), (65_536, 99 * _KIB, 1536, 32)
_GPUS = (
    _gpu(90, "NVIDIA H100 SXM", 132, *_SM_90, 50 * _MIB, 80 * _GIB, 3352 * _GB, aliases=("h100",)),
    _gpu(90, "NVIDIA H200 SXM", 132, *_SM_90, 60 * _MIB, 141 * _GIB, 4917 * _GB, arch="h200"),
    _gpu(75, "NVIDIA T4", 40, 65_536, 64 * _KIB, 1024, 16, 4 * _MIB, 16 * _GIB, 320 * _GB, aliases=("t4",)),
    _gpu(80, "NVIDIA A100 SXM", 108, 65_536, 163 * _KIB, 2048, 32, 40 * _MIB, 80 * _GIB, 2039 * _GB, aliases=("a100",)),
    _gpu(86, "NVIDIA A10", 72, 65_536, 99 * _KIB, 1536, 16, 6 * _MIB, 24 * _GIB, 600 * _GB, aliases=("a10",)),
    _gpu(89, "NVIDIA L4", 58, 65_536, 99 * _KIB, 1536, 24, 48 * _MIB, 24 * _GIB, 300 * _GB, aliases=("l4",)),
    _gpu(100, "NVIDIA B200", 148, *_SM_90, 126 * _MIB, 180 * _GIB, 8000 * _GB, aliases=("b200",)),
    _gpu(120, "NVIDIA GeForce RTX 5090", 170, *_SM_120, 96 * _MIB, 32 * _GIB, 1792 * _GB, aliases=("rtx5090",)),
)

ARCHITECTURES: Mapping[str, DeviceProperties] = {gpu.arch: gpu for gpu in _GPUS}
"""Example GPUs by the name of the architecture. `tridal check` plans for the first entry."""


@functools.cache
def present_gpu(index: int) -> DeviceProperties:
    """Describes GPU `index` of this machine, as Triton's driver and torch report it.

    `max_programs` is that of the example GPU with the same compute capability. If there is none, it is the smallest one
    of the same major version: with too large a value, a cooperative launch could hang.

    The bandwidth assumes two bits per cycle of the memory clock on each wire, as for HBM and GDDR. It is None if the
    driver does not know the clock, as for some virtual GPUs.
    """
    import torch
    from triton.runtime import driver

    from_torch = torch.cuda.get_device_properties(index)
    from_triton = driver.active.utils.get_device_properties(index)
    capability = 10 * from_torch.major + from_torch.minor
    arch, major = f"sm_{capability}", f"sm_{from_torch.major}"
    max_programs = [gpu.max_programs or 0 for gpu in _GPUS if gpu.arch == arch] or [
        gpu.max_programs or 0 for gpu in _GPUS if gpu.arch[:-1] == major
    ]
    return _gpu(
        capability,
        from_torch.name,
        from_triton["multiprocessor_count"],
        from_triton["max_num_regs"],
        from_triton["max_shared_mem"],
        from_torch.max_threads_per_multi_processor,
        min(max_programs, default=None),
        from_torch.L2_cache_size,
        from_torch.total_memory,
        2 * 1000 * from_triton["mem_clock_rate"] * from_triton["mem_bus_width"] // 8 or None,  # from kHz and bits
    )
