"""The launch plan of a GPU: a tile by the width of a row, programs by occupancy. Arithmetic alone.

What each number comes from is told, with measurements, in docs/performance-notes.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tridal.errors import PlanError
from tridal.types import ITEMSIZE, DeviceProperties, LaunchPlan, Probe, Problem, Resources, Tile
from tridal_cuda.occupancy import occupancy

_FEW_ELEMENTS, _MANY_ELEMENTS = 32, 64  # that a thread holds: few up to four warps and in a backward, else many
_NARROW_TILE = 1024  # elements of a tile of narrow rows: one warp's
_WIDE_ROW = 8192  # elements of a row of which a multiprocessor holds so few that their loads leave gaps
_BYTES_IN_FLIGHT = 96 << 10  # that keep a multiprocessor's share of memory busy, loading a third of the time
_AMPLE_SHARED_MEMORY = 200_000  # bytes from which a pipeline starts at four stages instead of two
_SHORTEST_PART, _LONGEST_PART, _MOST_PARTS = 2048, 4096, 16  # elements of a shared row that one program takes
_RUN = 32  # bytes of neighbouring rows that are one access to memory, and rows of a tile that are better


@dataclass(frozen=True, slots=True)
class _Fit:
    """A tile with what it takes, and how many programs of it a multiprocessor holds."""

    tile: Tile
    resources: Resources
    programs: int
    arithmetic: str


def plan(problem: Problem, device: DeviceProperties, probe: Probe) -> LaunchPlan:
    """Rows whole in registers where they fit, shared among programs beyond; column tiles where that can't be."""
    fit = _fit(choose_tile(problem, device), device, probe)
    in_flight = fit.programs * fit.tile.rows * fit.tile.cols * _bytes_read(problem)
    if fit.tile.algorithm == "tile" and fit.tile.cols > _WIDE_ROW and in_flight < _BYTES_IN_FLIGHT:
        fit = _pipelined(fit, device, probe)
    if fit.tile.algorithm == "split" and fit.programs * device.cores < fit.tile.split:
        fit = _fit(_looped(problem, device), device, probe)  # too few programs at once to share even one row
    tile, resident = fit.tile, fit.programs * device.cores
    tiles = problem.outer * -(-problem.inner // tile.rows)
    if tile.algorithm == "split":
        programs = min(tiles, resident // tile.split) * tile.split
        how = f"{tile.split} programs share a row and wait for each other, so {programs} of them are launched"
    elif tile.algorithm == "looped" or tile.num_stages > 1:
        programs = min(tiles, resident)
        how = f"{programs} programs loop over them"
    else:
        programs = tiles
        how = f"a program each, {-(-tiles // resident)} waves"
    spilled = f"; {fit.resources.spills} bytes a thread are spilled" if fit.resources.spills else ""
    reason = (
        f"occupancy {fit.programs} = {fit.arithmetic}; {device.cores} {device.core_name}s x {fit.programs} = {resident} "
        f"programs at once; {problem.rows} rows in {tiles} tiles of {tile.rows} x {tile.cols}: {how}{spilled}"
    )
    return LaunchPlan(tile, programs, reason, fit.programs, fit.resources)


def choose_tile(problem: Problem, device: DeviceProperties) -> Tile:
    """The tile that is tried first; its sides are powers of two."""
    cols, edges = _power_above(problem.cols), False
    vector = 16 // ITEMSIZE[problem.dtype]
    if problem.layout == "row" and not problem.aligned and problem.cols >= 4 * vector:
        cols, edges = _power_above(problem.cols // vector * vector), True  # the rest lies beside the tile
    widest = _widest(problem, device)
    rows = max(1, min(_power_above(problem.inner), _NARROW_TILE // cols))
    if problem.layout == "inner":
        rows = max(min(_power_above(problem.inner), _RUN, widest // cols), _RUN // problem.itemsize)
    few = problem.rows // rows < device.cores and cols > _WIDE_ROW
    if rows * cols <= widest and not few:
        return Tile("tile", rows, cols, _warps(problem, rows * cols), edges=edges)
    if problem.accumulator == 8:
        return _looped(problem, device)
    if problem.layout == "inner":
        rows, part = _RUN, widest // 2
    elif problem.backward or problem.itemsize < 4:
        part = _LONGEST_PART
    else:
        part = min(4 * _LONGEST_PART, max(2 * _LONGEST_PART, cols // _MOST_PARTS))
    # Short enough for a few programs on every multiprocessor.
    even = _power_above(-(-problem.rows * problem.cols // (4 * device.cores)))
    part = max(_SHORTEST_PART, min(part, even)) // rows
    split = -(-problem.cols // part)
    return Tile("split", rows, part, _warps(problem, rows * part), split=split, edges=edges)


def _looped(problem: Problem, device: DeviceProperties) -> Tile:
    rows = _RUN // problem.itemsize if problem.layout == "inner" else 1
    cols = _widest(problem, device) // 4 // rows
    stages = _stages(device)
    return Tile("looped", rows, cols, _warps(problem, rows * cols), num_stages=stages)


def _pipelined(fit: _Fit, device: DeviceProperties, probe: Probe) -> _Fit:
    """With the next tiles on their way through shared memory, if as many programs fit then."""
    for stages in range(_stages(device), 1, -1):
        piped = _fit(replace(fit.tile, num_stages=stages), device, probe)
        if piped.programs >= fit.programs:
            return piped
    return fit


def _stages(device: DeviceProperties) -> int:
    return 4 if (device.shared_memory or 0) > _AMPLE_SHARED_MEMORY else 2


def _fit(tile: Tile, device: DeviceProperties, probe: Probe) -> _Fit:
    resources = probe(tile)
    programs, arithmetic = occupancy(tile, resources, device)
    if programs == 0 and tile.num_stages == 1:
        raise PlanError(f"{tile} does not fit on {device.name}: {arithmetic}")
    return _Fit(tile, resources, programs, arithmetic)


def _widest(problem: Problem, device: DeviceProperties) -> int:
    """Elements that one program holds: half of the registers, by those that an element takes."""
    each = max(problem.accumulator, _bytes_read(problem)) // 4
    return (device.registers or 65536) // 2 // each


def _bytes_read(problem: Problem) -> int:
    return ITEMSIZE[problem.dtype] + (ITEMSIZE[problem.saved_dtype] if problem.backward else 0)


def _warps(problem: Problem, elements: int) -> int:
    few = elements // (32 * _FEW_ELEMENTS)
    if few <= 4 or problem.backward:
        return max(1, min(32, few))
    return max(4, elements // (32 * _MANY_ELEMENTS))


def _power_above(value: int) -> int:
    return 1 << (value - 1).bit_length()
