"""Properties of the AMD GPUs in this machine, and of one example GPU per architecture.

The limits of a core follow from the architecture, so they come from a table. torch reports no LDS size before ROCm 6.4,
half of the registers on some GPUs, and the L2 cache of one die. The numbers are from AMD's table "GPU hardware
specifications" and from the ISA documents. `tridal_rocm.resources` describes a core.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from tridal.devices.types import DeviceProperties
from tridal.errors import PlanError, nearest

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


def _cdna(arch: str, name: str, cores: int, lds: int, cache: int, memory: int, *aliases: str) -> DeviceProperties:
    """Waves have 64 threads. A SIMD has 8 waves, and 512 registers per lane.

    Sizes are in bytes. The accumulation registers are in the 512. `cache` is the last one before the memory.
    """
    limits = (131_072, lds, 2048, 32, cache, memory)
    return DeviceProperties(name, arch, cores, "CU", ("hip", arch, 64), 64, *limits, aliases=aliases)


def _rdna(arch: str, name: str, cores: int, cache: int, memory: int, *aliases: str) -> DeviceProperties:
    """Waves have 32 threads. A SIMD has 16 waves, and 1,536 registers per lane.

    `cores` are workgroup processors, as in torch's `multi_processor_count`.
    """
    limits = (196_608, 128 * _KIB, 2048, 64, cache, memory)
    return DeviceProperties(name, arch, cores, "WGP", ("hip", arch, 32), 32, *limits, aliases=aliases)


_GPUS = (
    _cdna("gfx942", "AMD Instinct MI300X", 304, 64 * _KIB, 256 * _MIB, 192 * _GIB, "mi300x", "mi300a", "mi325x"),
    _cdna("gfx90a", "AMD Instinct MI250X", 110, 64 * _KIB, 8 * _MIB, 64 * _GIB, "mi250x", "mi250", "mi210"),
    _cdna("gfx950", "AMD Instinct MI355X", 256, 160 * _KIB, 256 * _MIB, 288 * _GIB, "mi355x", "mi350x"),
    _rdna("gfx1100", "AMD Radeon RX 7900 XTX", 48, 96 * _MIB, 24 * _GIB, "rx7900xtx", "rx7900xt", "w7900"),
    _rdna("gfx1201", "AMD Radeon RX 9070 XT", 32, 64 * _MIB, 16 * _GIB, "rx9070xt", "rx9070"),
)

ARCHITECTURES: Mapping[str, DeviceProperties] = {gpu.arch: gpu for gpu in _GPUS}
"""Example GPUs by LLVM's name of the architecture. `tridal check` plans for the first entry. An MI250X is two GPUs."""


@functools.cache
def present_gpu(index: int) -> DeviceProperties:
    """Describes GPU `index` of this machine. Name, cores and memory are from torch, and the rest is from the table.

    Raises:
        PlanError: the architecture is not in the table.
    """
    import torch

    found = torch.cuda.get_device_properties(index)
    arch = found.gcnArchName.partition(":")[0]  # such as "gfx942:sramecc+:xnack-"
    if arch not in ARCHITECTURES:
        raise PlanError(
            f"device {index}, {found.name}, has the architecture {arch}, for which there are no plans"
            f"{nearest(arch, ARCHITECTURES)} (known: {', '.join(ARCHITECTURES)}). To let torch compute, "
            "set TRIDAL_PLUGINS=-rocm. To hide this device, set HIP_VISIBLE_DEVICES"
        )
    example = ARCHITECTURES[arch]
    return replace(example, name=found.name, cores=found.multi_processor_count, memory=found.total_memory, aliases=())
