"""The launch plan of a GPU: which tile, and how many programs can be resident at once. Arithmetic alone.

Occupancy is that of Triton's fused-softmax tutorial, with the limits on warps and programs added and registers rounded up
to what the hardware allocates:

    registers: registers of an SM // (registers of the kernel x warp size x warps)
    shared memory: shared memory of an SM // shared memory of the kernel
    warps: threads of an SM // (warp size x warps)
"""

from __future__ import annotations

from tridal.types import DeviceProperties, LaunchPlan, Probe, Problem, Resources, Tile

_REGISTER_UNIT = 8  # registers a thread are allocated in eights (CUDA's occupancy calculator, all since sm_30)
_ELEMENTS_A_THREAD = 32
_NARROW_TILE = 4096  # elements of a tile of several narrow rows
_WIDEST_ROW = 32768  # elements of the widest row that one program holds in registers
_AMPLE_SHARED_MEMORY = 200_000


def plan(problem: Problem, device: DeviceProperties, probe: Probe) -> LaunchPlan:
    """Whole rows in a tile while they fit into a multiprocessor's registers, column tiles beyond."""
    tile = choose_tile(problem, device)
    resources = probe(tile)
    occupancy, limits = occupancy_of(tile, resources, device)
    if occupancy == 0:
        raise ValueError(f"{tile} does not fit on {device.name}: {limits}")
    tiles = problem.outer * -(-problem.inner // tile.rows)
    programs = min(tiles, device.cores * occupancy)
    spilled = f"; {resources.spills} bytes a thread are spilled" if resources.spills else ""
    return LaunchPlan(
        tile,
        programs,
        reason=(
            f"occupancy {occupancy} = min({limits}); {device.cores} {device.core_name}s x {occupancy} = "
            f"{device.cores * occupancy} programs, {problem.rows} rows in {tiles} tiles of {tile.rows} x {tile.cols}"
            f"{spilled}"
        ),
        occupancy=occupancy,
        resources=resources,
    )


def choose_tile(problem: Problem, device: DeviceProperties) -> Tile:
    """Powers of two: all of a row if it fits, as many narrow rows as make a tile worth a program."""
    stages = 4 if (device.shared_memory or 0) > _AMPLE_SHARED_MEMORY else 2
    cols = 1 << (problem.cols - 1).bit_length()
    inner = 1 << (problem.inner - 1).bit_length()
    widest = _WIDEST_ROW * 4 // (problem.accumulator * (2 if problem.backward else 1))
    if problem.layout == "inner":
        rows = min(inner, 128 // problem.itemsize)
        algorithm = "tile" if rows * cols <= widest // 2 else "looped"
        cols = cols if algorithm == "tile" else _NARROW_TILE // rows
    elif cols <= widest:
        algorithm, rows = "tile", max(1, min(inner, _NARROW_TILE // cols))
    else:
        algorithm, rows, cols = "looped", 1, widest // 4
    return Tile(algorithm, rows, cols, num_warps=_warps(rows * cols), num_stages=stages)


def _warps(elements: int) -> int:
    warps = elements // (32 * _ELEMENTS_A_THREAD)
    return max(1, min(16, 1 << max(warps - 1, 0).bit_length()))


def occupancy_of(tile: Tile, resources: Resources, device: DeviceProperties) -> tuple[int, str]:
    """Programs that one multiprocessor holds at once, and the arithmetic in words."""
    threads = (device.warp_size or 32) * tile.num_warps
    limits: list[tuple[int, str]] = []
    if device.registers and resources.registers:
        registers = -(-resources.registers // _REGISTER_UNIT) * _REGISTER_UNIT
        fits = device.registers // (registers * threads)
        limits.append((fits, f"registers {device.registers}//({registers}*{device.warp_size}*{tile.num_warps})={fits}"))
    if device.shared_memory and resources.shared_memory:
        fits = device.shared_memory // resources.shared_memory
        limits.append((fits, f"shared memory {device.shared_memory}//{resources.shared_memory}={fits}"))
    if device.max_threads:
        fits = device.max_threads // threads
        limits.append((fits, f"threads {device.max_threads}//{threads}={fits}"))
    if device.max_programs:
        limits.append((device.max_programs, f"programs {device.max_programs}"))
    return min(fits for fits, _ in limits), ", ".join(words for _, words in limits)
