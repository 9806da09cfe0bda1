"""Properties of the Intel GPUs in this machine, and of one example GPU per architecture.

The registers and hardware threads of an Xe-core follow from the architecture, so they come from a table. An Xe-core has
8 vector engines with 8 hardware threads, or 16 engines on DG2. A thread has 128 registers of 64 bytes, or 32 on DG2.
The numbers are from Intel's product pages and its "oneAPI GPU Optimization Guide".
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from tridal.devices.types import DeviceProperties
from tridal.errors import PlanError

SUB_GROUP = 32
"""Work-items per sub-group: that of Triton's kernels on all Intel GPUs. A hardware thread runs one sub-group."""
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_REGISTERS = 131_072  # 32-bit, per Xe-core: 64 threads x 128 x 64 bytes; on DG2, 128 threads x 128 x 32 bytes


def _xe(
    arch: str, name: str, cores: int, threads: int, slm: int, cache: int, memory: int, bandwidth: int, fp64: bool,
    *aliases: str,
) -> DeviceProperties:  # fmt: skip
    """Describes a GPU with so many hardware threads per Xe-core. Sizes are in bytes."""
    target = {
        "name": name, "sub_group_sizes": [16, 32], "max_work_group_size": 1024, "max_num_sub_groups": 64,
        "has_fp64": fp64, "has_bfloat16_conversions": True, "has_subgroup_matrix_multiply_accumulate": True,
        "has_subgroup_2d_block_io": arch != "dg2",
    }  # fmt: skip
    return DeviceProperties(
        name, arch, cores, "Xe-core", ("xpu", target, SUB_GROUP), SUB_GROUP, _REGISTERS, slm, threads * SUB_GROUP,
        threads, cache, memory, bandwidth, aliases=aliases,
    )  # fmt: skip


_GPUS = (
    _xe("pvc", "Intel Data Center GPU Max 1550", 64, 64, 128 * _KIB, 204 * _MIB, 64 * _GIB, 1_638_400_000_000, True,
        "Data Center GPU Max 1550", "max1550", "max1100"),
    _xe("bmg", "Intel Arc B580", 20, 64, 128 * _KIB, 18 * _MIB, 12 * _GIB, 456_000_000_000, True,
        "Arc B580", "b580", "b570"),
    _xe("dg2", "Intel Arc A770", 32, 128, 64 * _KIB, 16 * _MIB, 16 * _GIB, 560_000_000_000, False,
        "Arc A770", "a770", "a750", "Data Center GPU Flex 170", "Flex 170"),
)  # fmt: skip

ARCHITECTURES: Mapping[str, DeviceProperties] = {gpu.arch: gpu for gpu in _GPUS}
"""Example GPUs by the compiler's name of the architecture. A Max 1550 is two GPUs for torch, of one stack each."""

_PRODUCTS = {"Data Center GPU Max": "pvc", "Data Center GPU Flex": "dg2", "Arc(TM) A": "dg2", "Arc(TM) B": "bmg"}
"""The architectures by a part of the driver's name, for example "Intel(R) Arc(TM) B580 Graphics"."""


@functools.cache
def present_gpu(index: int) -> DeviceProperties:
    """Describes GPU `index` of this machine. The table has its threads and registers, and torch has the rest.

    Raises:
        PlanError: the product is not in the table.
    """
    import torch

    found = torch.xpu.get_device_properties(index)
    arch = next((arch for part, arch in _PRODUCTS.items() if part in found.name), None)
    if arch is None:
        raise PlanError(
            f"device {index}, {found.name}, is of an architecture for which there are no plans (known: "
            f"{', '.join(ARCHITECTURES)}). To let torch compute, set TRIDAL_PLUGINS=-xpu. To hide this device, set "
            "ZE_AFFINITY_MASK"
        )
    example = ARCHITECTURES[arch]
    return replace(
        example,
        name=found.name,
        cores=found.gpu_subslice_count,
        target=("xpu", torch.xpu.get_device_capability(index), SUB_GROUP),  # the target of triton-xpu's driver
        shared_memory=getattr(found, "local_mem_size", example.shared_memory),
        l2_cache=getattr(found, "last_level_cache_size", example.l2_cache),
        memory=found.total_memory,
        bandwidth=None,
        aliases=(),
    )
