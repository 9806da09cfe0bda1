"""Properties of the GPUs in this machine, and of one example GPU per compute capability.

For the examples, the limits of a multiprocessor are from the table "Technical Specifications per Compute Capability" of
NVIDIA's CUDA C++ Programming Guide. The number of multiprocessors, the L2 cache and the memory are from data sheets.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from tridal.devices.types import DeviceProperties

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


def _gpu(
    capability: int, name: str, cores: int, *limits: int | None, aliases: tuple[str, ...] = ()
) -> DeviceProperties:
    """Returns the properties of a GPU. `limits` are the fields of `DeviceProperties` from `registers` to `memory`."""
    target = ("cuda", capability, 32)
    return DeviceProperties(name, f"sm_{capability}", cores, "SM", target, 32, *limits, aliases=aliases)


_GPUS = (
    _gpu(90, "NVIDIA H100 SXM", 132, 65_536, 227 * _KIB, 2048, 32, 50 * _MIB, 80 * _GIB, aliases=("h100", "h200")),
    _gpu(75, "NVIDIA T4", 40, 65_536, 64 * _KIB, 1024, 16, 4 * _MIB, 16 * _GIB, aliases=("t4",)),
    _gpu(80, "NVIDIA A100 SXM", 108, 65_536, 163 * _KIB, 2048, 32, 40 * _MIB, 80 * _GIB, aliases=("a100",)),
    _gpu(86, "NVIDIA A10", 72, 65_536, 99 * _KIB, 1536, 16, 6 * _MIB, 24 * _GIB, aliases=("a10",)),
    _gpu(89, "NVIDIA L4", 58, 65_536, 99 * _KIB, 1536, 24, 48 * _MIB, 24 * _GIB, aliases=("l4",)),
    _gpu(100, "NVIDIA B200", 148, 65_536, 227 * _KIB, 2048, 32, 126 * _MIB, 180 * _GIB, aliases=("b200",)),
    _gpu(120, "NVIDIA GeForce RTX 5090", 170, 65_536, 99 * _KIB, 1536, 32, 96 * _MIB, 32 * _GIB, aliases=("rtx5090",)),
)

ARCHITECTURES: Mapping[str, DeviceProperties] = {gpu.arch: gpu for gpu in _GPUS}
"""Example GPUs by nvcc's name of the compute capability. `tridal check` plans for the first entry."""


@functools.cache
def present_gpu(index: int) -> DeviceProperties:
    """Returns the properties of GPU `index` in this machine, as Triton's driver and torch report them.

    `max_programs` is that of the example GPU with the same compute capability. If there is none, it is the smallest one
    of the same major version: with too large a value, a cooperative launch could hang.
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
    )
