"""Programs that a multiprocessor holds at once: the arithmetic of registers, shared memory and warps.

That of Triton's fused-softmax tutorial, with the limits on threads and programs added, and registers rounded up to what
the hardware allocates:

    registers       registers of an SM // (registers of the kernel x warp size x warps), and whole warps in each
                    quarter of an SM, which has a quarter of the registers
    shared memory   shared memory of an SM // shared memory of the kernel
    threads         threads of an SM // (warp size x warps)
"""

from __future__ import annotations

from tridal.types import DeviceProperties, Resources, Tile

_QUARTERS = 4  # of a multiprocessor, each with a scheduler and registers of its own, since compute capability 5
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
        fits = device.shared_memory // resources.shared_memory
        limits.append((fits, f"shared memory {device.shared_memory}//{resources.shared_memory}={fits}"))
    if device.max_threads:
        fits = device.max_threads // threads
        limits.append((fits, f"threads {device.max_threads}//{threads}={fits}"))
    if device.max_programs:
        limits.append((device.max_programs, f"programs {device.max_programs}"))
    return min((fits for fits, _ in limits), default=1), f"min({', '.join(words for _, words in limits)})"
