"""Reads the resources of compiled kernels, and computes the occupancy: the number of programs per core.

A core is a compute unit on CDNA and a workgroup processor, which is two compute units, on RDNA. It has four SIMDs.
"""

from __future__ import annotations

import re

from tridal.devices.types import DeviceProperties, KernelConfig, Resources
from tridal_accelerator.gpu import round_up, smallest_limit

MAX_THREADS = 1024  # per program
_SIMDS = 4
_MAX_REGISTERS = 512  # of a thread, vector and accumulation registers
_SCALAR_REGISTERS = 100  # of a wave on CDNA; with more, only 7 waves fit in the 800 of a SIMD
_SEVEN_WAVES = 65  # vector registers with which 7 waves fit on a SIMD
_REGISTER_UNITS = 64  # registers are allocated in 64ths of a SIMD's: 8 of 512 per lane on CDNA, 24 of 1,536 on RDNA
_LDS_UNITS = 128  # the LDS is allocated in 128ths: 512 bytes of 64 KiB, 1,280 of 160 KiB, 1,024 of 128 KiB


def read_resources(amdgcn: str, shared_memory: int) -> Resources:
    """Reads the registers and spills that the metadata of AMD assembly gives.

    The registers are the vector registers. With accumulation registers, `.vgpr_count` is the sum of both kinds. On
    CDNA, a kernel whose scalar registers limit it to 7 waves has at least the vector registers that do so. Spills are
    the bytes of scratch memory. The LDS in the metadata is 0, because Triton allocates it at the launch.

    Raises:
        RuntimeError: the assembly has no such metadata.
    """
    found = {name: int(value) for name, value in re.findall(r"\.(\w+):\s+(\d+)\s*$", amdgcn, re.MULTILINE)}
    needed = {"vgpr_count", "sgpr_count", "private_segment_fixed_size", "wavefront_size"}
    if missing := needed - found.keys():
        raise RuntimeError(f"the metadata of the AMD assembly lacks {', '.join(sorted(missing))}")
    many_scalars = found["wavefront_size"] == 64 and found["sgpr_count"] > _SCALAR_REGISTERS
    registers = max(found["vgpr_count"], _SEVEN_WAVES if many_scalars else 0)
    return Resources(registers, found["private_segment_fixed_size"], shared_memory)


def waves_per_simd(registers: int, device: DeviceProperties) -> tuple[int, str]:
    """Counts the waves that the registers of a SIMD can hold, and shows the calculation as text."""
    lanes = _SIMDS * (device.warp_size or 64)
    per_lane, most = (device.registers or 131_072) // lanes, (device.max_threads or 2048) // lanes
    allocated = round_up(max(1, registers), per_lane // _REGISTER_UNITS)
    return min(most, per_lane // allocated), f"min({most}, {per_lane}//{allocated})"


def max_registers(config: KernelConfig, device: DeviceProperties) -> int:
    """The most registers of a thread with which a core can hold one program."""
    waves = -(-config.num_warps // _SIMDS)
    per_lane = (device.registers or 131_072) // (_SIMDS * (device.warp_size or 64))
    return per_lane // waves if waves > 1 else min(per_lane, _MAX_REGISTERS)


def occupancy(config: KernelConfig, resources: Resources, device: DeviceProperties) -> tuple[int, str]:
    """Counts the programs that one core can hold, and shows the calculation as text.

    It is the smallest of the limits by waves per SIMD, LDS and programs. Waves per SIMD depend on registers.
    """
    waves, formula = waves_per_simd(resources.registers, device)
    programs = _SIMDS * waves // config.num_warps
    limits = [(programs, f"waves {_SIMDS}*{formula}//{config.num_warps}={programs}")]
    if resources.shared_memory and device.shared_memory:
        used = round_up(resources.shared_memory, device.shared_memory // _LDS_UNITS)
        most = device.shared_memory // (2 if device.warp_size == 32 else 1)  # half of a workgroup processor's
        available = device.shared_memory if used <= most else most
        limits.append((available // used, f"LDS {available}//{used}={available // used}"))
    if device.max_programs:
        limits.append((device.max_programs, f"programs {device.max_programs}"))
    return smallest_limit(limits)
