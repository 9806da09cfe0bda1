"""Reads the resources of compiled kernels, and computes the occupancy: the number of programs per multiprocessor."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tridal.devices.types import DeviceProperties, KernelConfig, Resources
from tridal_accelerator.gpu import round_up, smallest_limit

REGISTER_UNIT = 8  # registers per thread; they are allocated in multiples of it on every supported architecture
_QUARTERS = 4  # sub-partitions of a multiprocessor; each has its own warp scheduler and registers
_SHARED_MEMORY_UNIT = 128  # bytes; shared memory is allocated in multiples of it
_SIZED, _FRAME_SIZE, _REGISTERS = 0x04, 0x11, 0x2F  # EIFMT_SVAL, EIATTR_FRAME_SIZE and EIATTR_REGCOUNT of a cubin
_RESERVED_SHARED_MEMORY = 1024  # bytes that the driver reserves for each program, since compute capability 8


def read_resources(cubin: bytes, shared_memory: int) -> Resources:
    """Reads the registers and spills that the section ".nv.info" of a cubin states.

    cuobjdump prints the same numbers, but its process takes 2 to 7 ms.

    Raises:
        RuntimeError: the cubin does not state the registers.
    """
    try:
        usage = dict(_attributes(_section(cubin, b".nv.info")))
    except (struct.error, IndexError, StopIteration):
        usage = {}
    if _REGISTERS not in usage:
        raise RuntimeError(f"the compiled kernel, a cubin of {len(cubin)} bytes, does not state its registers")
    return Resources(usage[_REGISTERS], usage.get(_FRAME_SIZE, 0), shared_memory)


def _section(cubin: bytes, name: bytes) -> bytes:
    """Finds the content of a section of an ELF file of 64 bits."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, index_of_names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<I20xQQ", cubin, table + number * size) for number in range(count)]
    names = headers[index_of_names][1]
    starts = ((cubin.find(name + b"\0", names + at) == names + at, start, length) for at, start, length in headers)
    return next(cubin[start : start + length] for found, start, length in starts if found)


def _attributes(info: bytes) -> Iterator[tuple[int, int]]:
    """Yields the attributes of ".nv.info" that have a number for a function, and these numbers."""
    at = 0
    while at < len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED:  # `value` is the number of bytes that follow: here an index of the function, and a number
            if value == 8:
                yield attribute, struct.unpack_from("<4xI", info, at)[0]
            at += value


def occupancy(config: KernelConfig, resources: Resources, device: DeviceProperties) -> tuple[int, str]:
    """Counts the programs that one multiprocessor can hold, and shows the calculation as text.

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
    """The most registers per thread with which a multiprocessor can hold `programs` programs, or 0."""
    warps_per_quarter = -(-programs * config.num_warps // _QUARTERS)
    registers = (device.registers or 0) // _QUARTERS // ((device.warp_size or 32) * warps_per_quarter)
    return registers // REGISTER_UNIT * REGISTER_UNIT
