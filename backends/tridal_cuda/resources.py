"""Reads the resources of compiled kernels, and computes the occupancy: the number of programs per multiprocessor."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

from tridal.devices.types import DeviceProperties, KernelConfig, Resources
from tridal_accelerator.gpu import round_up, smallest_limit

REGISTER_UNIT = 8  # registers per thread; they are allocated in multiples of it on every supported architecture
_QUARTERS = 4  # sub-partitions of a multiprocessor; each has its own warp scheduler and registers
_SHARED_MEMORY_UNIT = 128  # bytes; shared memory is allocated in multiples of it
_RESERVED_SHARED_MEMORY = 1024  # bytes that the driver reserves for each program, since compute capability 8


def read_resources(cubin: bytes, shared_memory: int) -> Resources:
    """Returns the registers and spills of a cubin, read with Triton's cuobjdump, and the given `shared_memory`.

    Raises:
        RuntimeError: cuobjdump cannot read the cubin. The message contains cuobjdump's output.
    """
    import triton

    cuobjdump = Path(triton.__file__).with_name("backends") / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        # `env` is a copy. Without it, the new process reads memory that another thread frees when it sets a variable.
        env = {name: value for name in list(os.environ) if (value := os.environ.get(name)) is not None}
        result = subprocess.run(
            [cuobjdump, "-res-usage", file.name], env=env, capture_output=True, text=True, check=False
        )
    usage = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", result.stdout)}
    if "REG" not in usage:
        raise RuntimeError(f"cuobjdump reports no registers: {(result.stdout + result.stderr).strip()}")
    return Resources(usage["REG"], usage.get("STACK", 0) + usage.get("LOCAL", 0), shared_memory)


def occupancy(config: KernelConfig, resources: Resources, device: DeviceProperties) -> tuple[int, str]:
    """Returns the number of programs that one multiprocessor can hold, and the calculation as text.

    It is the smallest of the limits by registers, shared memory, threads and programs, as in Triton's tutorials.
    A property of the device that is not known sets no limit. If none is known, the result is 1.
    """
    warp_size = device.warp_size or 32
    threads = warp_size * config.num_warps
    limits: list[tuple[int, str]] = []
    if device.registers and resources.registers:
        registers = round_up(resources.registers, REGISTER_UNIT)
        programs = device.registers // (registers * threads)
        formula = f"{device.registers}//({registers}*{warp_size}*{config.num_warps})"
        limits.append((programs, f"registers {formula}={programs}"))
        quarter = device.registers // _QUARTERS  # holds all registers of a warp
        in_quarters = _QUARTERS * (quarter // (registers * warp_size)) // config.num_warps
        if in_quarters < programs:
            formula = f"{_QUARTERS}*({quarter}//({registers}*{warp_size}))//{config.num_warps}"
            limits.append((in_quarters, f"quarters {formula}={in_quarters}"))
    if device.shared_memory and resources.shared_memory:
        available = device.shared_memory + _RESERVED_SHARED_MEMORY  # `shared_memory` excludes it
        used = round_up(resources.shared_memory, _SHARED_MEMORY_UNIT) + _RESERVED_SHARED_MEMORY
        limits.append((available // used, f"shared memory {available}//{used}={available // used}"))
    if device.max_threads:
        programs = device.max_threads // threads
        limits.append((programs, f"threads {device.max_threads}//{threads}={programs}"))
    if device.max_programs:
        limits.append((device.max_programs, f"programs {device.max_programs}"))
    return smallest_limit(limits)


def max_registers_for(programs: int, config: KernelConfig, device: DeviceProperties) -> int:
    """Returns the most registers per thread with which a multiprocessor can hold `programs` programs, or 0."""
    warps_per_quarter = -(-programs * config.num_warps // _QUARTERS)
    registers = (device.registers or 0) // _QUARTERS // ((device.warp_size or 32) * warps_per_quarter)
    return registers // REGISTER_UNIT * REGISTER_UNIT
