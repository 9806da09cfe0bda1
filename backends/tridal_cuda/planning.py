"""The launch plan of a GPU: a tile by the width of a row, programs by occupancy. Arithmetic alone.

What each number comes from is told, with measurements, in docs/performance-notes.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tridal.errors import PlanError
from tridal.types import ITEMSIZE, DeviceProperties, LaunchPlan, Probe, Problem, Resources, Tile
from tridal_cuda.occupancy import occupancy

_FEW_ELEMENTS, _MANY_ELEMENTS = 32, 64  # that a thread holds: few in small tiles and where rows have edges
_NARROW_TILE = 1024  # elements of a tile of narrow rows: one warp's
_WIDE_ROW = 8192  # elements of a row of which a multiprocessor holds so few that their loads leave gaps
_BYTES_IN_FLIGHT = 96 << 10  # that keep a multiprocessor's share of memory busy, loading a third of the time
_AMPLE_SHARED_MEMORY = 200_000  # bytes from which a pipeline may have four stages instead of two
_SHORTEST_PART, _LONGEST_PART = 2048, 8192  # elements of a shared row that one program takes, if enough are resident
_PROGRAMS_A_CORE = 8  # of a shared row at most; those of longer parts take more registers, and fewer are resident
_RUN = 64  # bytes of neighbouring rows that a tile takes at once where a row is not contiguous


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
    wide = fit.tile.algorithm == "tile" and fit.tile.cols > _WIDE_ROW
    if wide and not fit.tile.edges and in_flight < _BYTES_IN_FLIGHT:
        fit = _pipelined(fit, in_flight, device, probe)
    while fit.tile.algorithm == "split" and fit.programs * device.cores < fit.tile.split:
        fit = _fit(_longer_parts(fit.tile, problem, device), device, probe)
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
        how = f"a program each, {tiles / resident:.1f} times as many as at once"
    spilled = f"; {fit.resources.spills} bytes a thread are spilled" if fit.resources.spills else ""
    reason = (
        f"occupancy {fit.programs} = {fit.arithmetic}; {device.cores} {device.core_name}s x {fit.programs} = "
        f"{resident} programs at once; {problem.rows} rows in {tiles} tiles of {tile.rows} x {tile.cols}: "
        f"{how}{spilled}"
    )
    return LaunchPlan(tile, programs, reason, fit.programs, fit.resources)


def choose_tile(problem: Problem, device: DeviceProperties) -> Tile:
    """The tile that is tried first; its sides are powers of two."""
    if problem.layout == "inner":
        return _across_rows(problem, device)
    cols, edges = _power_above(problem.cols), False
    vector = 16 // ITEMSIZE[problem.dtype]
    if problem.layout == "row" and not problem.aligned and problem.cols >= 4 * vector:
        cols, edges = _power_above(problem.cols // vector * vector), True  # the rest lies beside the tile
    rows = max(1, min(_power_above(problem.inner), _NARROW_TILE // cols))
    few = problem.rows // rows < device.cores and cols > _WIDE_ROW
    if rows * cols <= _widest(problem, device) and not few:
        many = rows * cols > _WIDE_ROW // 2 and not (edges or problem.backward)
        warps = _warps(rows * cols, _MANY_ELEMENTS if many else _FEW_ELEMENTS)
        # Without a limit, the ends of rows cost the registers that keep a second program resident.
        spare = edges and warps == 16 and not problem.backward
        return Tile("tile", rows, cols, warps, max_registers=2 * _FEW_ELEMENTS if spare else None, edges=edges)
    if problem.accumulator == 8:
        return _looped(problem, device)
    longest = _LONGEST_PART if problem.itemsize == 4 and not problem.backward else _LONGEST_PART // 2
    part = _part(problem, device, longest)
    part = max(part, _power_above(-(-problem.cols // (_PROGRAMS_A_CORE * device.cores))))
    if part > _widest(problem, device):
        return _looped(problem, device)
    warps = _warps(part, _FEW_ELEMENTS if part == _SHORTEST_PART else _MANY_ELEMENTS)
    return Tile("split", 1, part, warps, split=-(-problem.cols // part), edges=edges)


def _across_rows(problem: Problem, device: DeviceProperties) -> Tile:
    """For neighbouring rows that are contiguous: a run of them, by all columns or by a share of them."""
    cols = _power_above(problem.cols)
    rows = min(_power_above(problem.inner), max(_RUN // problem.itemsize, _NARROW_TILE // cols))
    if rows * cols <= _widest(problem, device) // 2:
        return Tile("tile", rows, cols, _warps(rows * cols, _FEW_ELEMENTS if rows < 32 else _MANY_ELEMENTS))
    if problem.accumulator == 8:
        return _looped(problem, device)
    longest = _widest(problem, device)
    rows = min(rows, 16)
    part = min(cols, _part(problem, device, longest) // rows)
    if problem.cols > part * _PROGRAMS_A_CORE * device.cores:
        return _looped(problem, device)
    warps, split = _warps(rows * part, _MANY_ELEMENTS), -(-problem.cols // part)
    return Tile("split" if split > 1 else "tile", rows, part, warps, split=split)


def _part(problem: Problem, device: DeviceProperties, longest: int) -> int:
    """Elements for a program: few enough for several programs on every multiprocessor, but not fewer than pay."""
    even = -(-problem.rows * problem.cols // (4 * device.cores))
    return max(_SHORTEST_PART, min(longest, _power_above(even)))


def _longer_parts(tile: Tile, problem: Problem, device: DeviceProperties) -> Tile:
    """For a row that more programs would share than can be resident at once."""
    part = 2 * tile.cols
    if tile.rows * part > _widest(problem, device):
        return _looped(problem, device)
    return replace(tile, cols=part, num_warps=_warps(tile.rows * part, _MANY_ELEMENTS), split=-(-problem.cols // part))


def _looped(problem: Problem, device: DeviceProperties) -> Tile:
    rows = _RUN // problem.itemsize if problem.layout == "inner" else 1
    cols = _widest(problem, device) // 4 // rows
    return Tile("looped", rows, cols, _warps(rows * cols, _FEW_ELEMENTS), num_stages=_most_stages(device))


def _pipelined(fit: _Fit, in_flight: int, device: DeviceProperties, probe: Probe) -> _Fit:
    """With just as many next tiles on their way through shared memory as keep memory busy, if all still fit."""
    stages = min(_most_stages(device), 1 - (-_BYTES_IN_FLIGHT // in_flight))
    warps = max(fit.tile.num_warps, 16)
    piped = _fit(replace(fit.tile, num_warps=warps, num_stages=stages), device, probe)
    return piped if piped.programs >= fit.programs else fit


def _most_stages(device: DeviceProperties) -> int:
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


def _warps(elements: int, each: int) -> int:
    return max(1, min(32, elements // (32 * each)))


def _power_above(value: int) -> int:
    return 1 << (value - 1).bit_length()
