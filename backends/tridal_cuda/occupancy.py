"""Programs that a multiprocessor holds at once: the arithmetic of registers, shared memory and warps.

That of Triton's fused-softmax tutorial, with the limits on threads and programs added, and registers rounded up to what
the hardware allocates:

    registers       registers of an SM // (registers of the kernel x warp size x warps), and whole warps in each
                    quarter of an SM, which has a quarter of the registers
    shared memory   shared memory of an SM // shared memory of the kernel, each with a KiB that the driver keeps for a
                    program: what an SM has exceeds what one program may have by just that
    threads         threads of an SM // (warp size x warps)
"""

from __future__ import annotations

from tridal.devices.types import DeviceProperties, Resources, Tile

_QUARTERS = 4  # of a multiprocessor, each with a scheduler and registers of its own, since compute capability 5
_KEPT_MEMORY = 1024  # bytes of shared memory that each program takes besides its own, since compute capability 8
_MEMORY_UNIT = 128  # bytes in which shared memory is allocated
_REGISTER_UNIT = 8  # a thread's registers are allocated in eights, on every architecture that Triton compiles for


def occupancy(tile: Tile, resources: Resources, device: DeviceProperties) -> tuple[int, str]:
    """Programs that one multiprocessor holds at once, and the arithmetic in words. A limit that isn't known is none."""
    warp_size = device.warp_size or 32
    threads = warp_size * tile.num_warps
    limits: list[tuple[int, str]] = []
    if device.registers and resources.registers:
        registers = -(-resources.registers // _REGISTER_UNIT) * _REGISTER_UNIT
        fits = device.registers // (registers * threads)
        limits.append((fits, f"registers {device.registers}//({registers}*{warp_size}*{tile.num_warps})={fits}"))
        quarter = device.registers // _QUARTERS
        whole = _QUARTERS * (quarter // (registers * warp_size)) // tile.num_warps
        if whole < fits:
            words = f"quarters {_QUARTERS}*({quarter}//({registers}*{warp_size}))//{tile.num_warps}={whole}"
            limits.append((whole, words))
    if device.shared_memory and resources.shared_memory:
        there = device.shared_memory + _KEPT_MEMORY
        taken = -(-resources.shared_memory // _MEMORY_UNIT) * _MEMORY_UNIT + _KEPT_MEMORY
        fits = there // taken
        limits.append((fits, f"shared memory {there}//{taken}={fits}"))
    if device.max_threads:
        fits = device.max_threads // threads
        limits.append((fits, f"threads {device.max_threads}//{threads}={fits}"))
    if device.max_programs:
        limits.append((device.max_programs, f"programs {device.max_programs}"))
    return min((fits for fits, _ in limits), default=1), f"min({', '.join(words for _, words in limits)})"


def registers_for(programs: int, tile: Tile, device: DeviceProperties) -> int:
    """The most registers that a thread may take where a multiprocessor is to hold so many programs; 0 if it can't."""
    warps = -(-programs * tile.num_warps // _QUARTERS)
    each = (device.registers or 0) // _QUARTERS // ((device.warp_size or 32) * warps)
    return each // _REGISTER_UNIT * _REGISTER_UNIT
