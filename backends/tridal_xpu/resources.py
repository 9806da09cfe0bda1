"""Reads the resources of compiled kernels, and computes the occupancy: the number of programs per Xe-core.

A hardware thread runs one sub-group of 32 work-items. Its register file (GRF) has 128 registers. A kernel can be built
for 256, with half as many threads. The driver of triton-xpu does so if a kernel spills more than 1,000 bytes. Plans
count with 128.
"""

from __future__ import annotations

import re

from tridal.devices.types import DeviceProperties, KernelConfig, Resources
from tridal_accelerator.gpu import round_up, smallest_limit

MAX_WORK_ITEMS = 1024
"""Work-items of a work-group, which is a program."""
MAX_SPILL = 256
"""Bytes per work-item that a planned kernel may spill."""
_SLM_UNIT = 1024  # bytes in which the SLM is allocated


def read_resources(binary: bytes, shared_memory: int) -> Resources:
    """Reads registers and spills. SPIR-V has no registers, so `registers` is then 0, and plans estimate them.

    Machine code (with TRITON_XPU_GEN_NATIVE_CODE=1) is made for "pvc" only, and has the registers of 64 bytes and the
    spilled bytes of a hardware thread. The results are those of a work-item.
    """
    if not binary.startswith(b"\x7fELF"):
        return Resources(0, 0, shared_memory)
    found = {name: int(value) for name, value in re.findall(rb"(grf_count|spill_size):\s+(\d+)", binary)}
    return Resources(found.get(b"grf_count", 128) // 2, found.get(b"spill_size", 0) // 32, shared_memory)


def registers_per_item(device: DeviceProperties) -> int:
    """Counts 32-bit registers of a work-item: 64 with registers of 64 bytes, and 32 with those of 32 bytes."""
    return (device.registers or 131_072) // (device.max_threads or 2048)


def occupancy(config: KernelConfig, resources: Resources, device: DeviceProperties) -> tuple[int, str]:
    """Counts the programs that one Xe-core can hold, and shows the calculation as text.

    It is the smaller one of the limits by hardware threads and by SLM.
    """
    threads = (device.max_threads or 2048) // (device.warp_size or 32)
    limits = [(threads // config.num_warps, f"threads {threads}//{config.num_warps}={threads // config.num_warps}")]
    if resources.shared_memory and device.shared_memory:
        used, available = round_up(resources.shared_memory, _SLM_UNIT), device.shared_memory
        limits.append((available // used, f"SLM {available}//{used}={available // used}"))
    return smallest_limit(limits)
