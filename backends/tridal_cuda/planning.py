"""The launch plan of a GPU: a tile by the width of a row, programs by occupancy. Arithmetic alone.

What each number comes from is told, with measurements, in docs/performance-notes.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tridal.errors import PlanError
from tridal.types import ITEMSIZE, DeviceProperties, LaunchPlan, Probe, Problem, Resources, Tile
from tridal_cuda.occupancy import occupancy, registers_for

_FEW_ELEMENTS, _MANY_ELEMENTS = 32, 64  # that a thread holds: few of narrow rows, and backward
_NARROW_TILE = 1024  # elements of a tile of narrow rows: one warp's; of float32 half of it, forward
_ROWS_WITH_EDGES = 8  # of a tile of narrow rows at least, of which the whole vectors and the ends each fill a warp
_WIDE_ROW = 8192  # elements of a row of which a multiprocessor holds so few that their loads leave gaps
_BYTES_IN_FLIGHT = 96 << 10  # that keep a multiprocessor's share of memory busy, loading a third of the time
_TOO_FEW_BYTES = 56 << 10  # with which it is better to share rows; and with all of those, if by a single program
_SHARED_BYTES_IN_FLIGHT = 160 << 10  # the same where programs also wait for each other
_AMPLE_SHARED_MEMORY = 200_000  # bytes from which a pipeline may have four stages instead of two
_REREAD_ELEMENTS, _MOST_ELEMENTS = 16384, 128  # of a part that is read again, and of a thread, which doesn't hold them
_REREAD_BYTES = 112 << 10  # in flight where columns are read again: half of the cache that they are read from
_FEW_WAVES = 4  # of rows, whose last one leaves much of the device idle if a row takes a program
_SHORTEST_PART, _LONGEST_PART = 2048, 8192  # elements of a shared row that one program takes, if enough are resident
_PARTS, _PARTS_WITH_EDGES = 16, 128  # of a shared row, as long as they aren't longer than that
_PARTS_ACROSS = 64  # of them at most, so that there aren't more words than elements of a part
_WORDS_ACROSS = 2048  # of a tile at most, where columns are read again
_ELEMENTS_ACROSS = 16384  # that a program takes at most, if it doesn't need more to hold half a run
_FEWER_REGISTERS = 8  # than the limit, if that spills: the compiler makes more of it at times
_FEW_SPILLS = 32  # bytes a thread that are worth one more program where programs wait for each other
_PROGRAMS_A_CORE = 8  # of a shared row at most; those of longer parts take more registers, and fewer are resident
_EXP2_BIAS = -5.5e-8  # mean relative error of ex2.approx, on sm_90
_RUN = 32  # neighbouring rows that a tile takes at once where a row is not contiguous; half of it if rows are long
_LINE = 128  # bytes of a line of the cache, which takes room as a whole, however little of it is read


@dataclass(frozen=True, slots=True)
class _Fit:
    """A tile with what it takes, and how many programs of it a multiprocessor holds."""

    tile: Tile
    resources: Resources
    programs: int
    arithmetic: str


def plan(problem: Problem, device: DeviceProperties, probe: Probe) -> LaunchPlan:
    """Rows whole in registers where they fit, shared among programs beyond; column tiles where that can't be."""
    fit = _whole(problem, device, probe) or _shared(problem, device, probe) or _looped(problem, device, probe)
    tile, resident = fit.tile, fit.programs * device.cores
    tiles = problem.tiles(tile.rows)
    if tile.algorithm == "split":
        programs = min(tiles, resident // tile.split) * tile.split
        how = f"{tile.split} programs share a row and wait for each other, so {programs} of them are launched"
    elif tile.persistent:
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


def _whole(problem: Problem, device: DeviceProperties, probe: Probe) -> _Fit | None:
    """Rows in one tile, a program each; None if they are too wide, or keep more busy when they are shared."""
    tile = _whole_tile(problem, device)
    if tile is None:
        return None
    shareable = problem.layout != "inner" and tile.cols > _WIDE_ROW and problem.accumulator == 4
    if shareable and tile.edges:
        return None
    fit = _fit(tile, device, probe)
    if not tile.rereads or problem.layout == "inner":
        fit = _squeezed(fit, _REREAD_BYTES if tile.rereads else _BYTES_IN_FLIGHT, problem, device, probe)
    if tile.rereads:  # more would drive each other out of the cache; loads come earlier where the compiler has a limit
        enough = min(fit.programs, -(-_REREAD_BYTES // _bytes_held(tile, problem)))
        fit = _fit(replace(tile, max_registers=registers_for(enough, tile, device)), device, probe)
    few = problem.rows < _FEW_WAVES * fit.programs * device.cores
    least = _TOO_FEW_BYTES if fit.programs > 1 and not tile.rereads else _BYTES_IN_FLIGHT
    if shareable and (few or _in_flight(fit, problem) <= least):
        return None
    return fit


def _whole_tile(problem: Problem, device: DeviceProperties) -> Tile | None:
    """A tile of whole rows, or None if they are too wide for one. Its sides are powers of two."""
    widest = _widest(problem, device)
    bias = _exp2_bias(problem)
    if problem.layout == "inner":
        cols = _power_above(problem.cols)
        if cols >= _MANY_ELEMENTS and _rereadable(problem, device):
            return _whole_columns(problem, device)
        rows = min(_power_above(problem.inner), max(_RUN, _NARROW_TILE // cols))
        most = min(widest, _ELEMENTS_ACROSS)
        if problem.aligned or problem.backward:
            rows = _neighbours(rows, cols, most)
        elif problem.itemsize > 2:  # each element has an address, and that of two bytes takes as many registers
            most = widest
        if rows * cols > most:
            return None
        warps = _warps(rows * cols, _FEW_ELEMENTS if problem.backward else _MANY_ELEMENTS)
        return Tile("tile", rows, cols, warps, exp2_bias=bias, persistent=False)
    cols, edges = _columns(problem)
    half = problem.itemsize == 2 and not problem.backward
    full = half or problem.backward or edges or cols < (device.warp_size or 32)
    rows = max(1, (_NARROW_TILE if full else _NARROW_TILE // 2) // cols)
    if edges and rows >= _ROWS_WITH_EDGES // 2:  # ends take as many registers however narrow a row is
        rows = max(_ROWS_WITH_EDGES, rows if half else rows // 2)
    rows = min(_power_above(problem.inner), rows)
    if rows * cols > widest:
        return None
    many = cols > _NARROW_TILE and not problem.backward
    narrow = edges and half and rows >= _ROWS_WITH_EDGES
    warps = 2 if narrow else _warps(rows * cols, _MANY_ELEMENTS if many else _FEW_ELEMENTS)
    tile = Tile("tile", rows, cols, warps, edges=edges, exp2_bias=bias, persistent=False)
    return _rereading(tile, problem) if cols > _REREAD_ELEMENTS and _rereadable(problem, device) else tile


def _whole_columns(problem: Problem, device: DeviceProperties) -> Tile | None:
    """A tile of whole columns that are read again; None if lines of them are more than the cache bears.

    Half a line wastes half of the cache. So it is only for a gradient, which reads twice and not three times; and there
    too, only if the tile is too large otherwise, or lets no second program in where that is of use: because the cache
    bears two, or because a multiprocessor has few tiles.
    """
    cols, most = _power_above(problem.cols), _most_reread(device)
    line = _LINE // problem.itemsize
    rows = min(_power_above(problem.inner), line)
    two_fit = 2 * problem.cols * _LINE * 2 <= (device.shared_memory or 0)
    few = problem.tiles(line) < _FEW_WAVES * device.cores
    if problem.backward and rows == line and rows * cols > (most // 2 if two_fit or few else most):
        rows //= 2
    if rows * cols > most:
        return None
    tile = Tile("tile", rows, cols, 1, exp2_bias=_exp2_bias(problem), persistent=False)
    return _rereading(tile, problem)


def _squeezed(fit: _Fit, wanted: int, problem: Problem, device: DeviceProperties, probe: Probe) -> _Fit:
    """With fewer registers, as long as that lets more programs in without spills, until `wanted` bytes are read.

    The compiler takes registers because it may: it is not told how many programs there should be.
    """
    while _in_flight(fit, problem) < wanted:
        most = registers_for(fit.programs + 1, fit.tile, device)
        tight = replace(fit.tile, max_registers=most)
        if most < 1 or occupancy(tight, replace(fit.resources, registers=most), device)[0] <= fit.programs:
            break
        more = _fit(tight, device, probe)
        bearable = fit.resources.spills + (_FEW_SPILLS if tight.split > 1 and tight.num_stages == 1 else 0)
        if more.resources.spills > fit.resources.spills:
            fewer = _fit(replace(tight, max_registers=most - _FEWER_REGISTERS), device, probe)
            more = min(more, fewer, key=lambda fit: fit.resources.spills)
        if more.programs <= fit.programs or more.resources.spills > bearable:
            break
        fit = more
    return fit


def _shared(problem: Problem, device: DeviceProperties, probe: Probe) -> _Fit | None:
    """Rows in parts, with the next ones on their way while programs wait; None if not all parts can be resident."""
    if problem.accumulator == 8:
        return None  # sums of float64 don't fit the words that programs exchange
    tile = _shared_tile(problem, device)
    if tile is None:
        return None
    each, more = -(-tile.split * problem.rows // device.cores), _warps(tile.cols, _FEW_ELEMENTS)
    # If all programs fit at once, then more warps take less time, and none has to ask for more.
    hurried = replace(tile, num_warps=more, persistent=False)
    if tile.rows == 1 and each <= 16 and registers_for(each, hurried, device) > _FEW_ELEMENTS:
        quick = _fit(hurried, device, probe)
        quick = _squeezed(quick, each * _bytes_held(hurried, problem), problem, device, probe)
        if each <= quick.programs:
            return quick
    fit = _fit(tile, device, probe)
    while fit.programs * device.cores < fit.tile.split:
        longer = 2 * fit.tile.cols
        if fit.tile.rows * longer > _widest(problem, device):
            return None
        fit = _fit(_parted(fit.tile, longer, problem), device, probe)
    tight = _squeezed(fit, _SHARED_BYTES_IN_FLIGHT, problem, device, probe)
    missing = _SHARED_BYTES_IN_FLIGHT / _in_flight(tight, problem)
    if missing > 1 and tile.rows == 1 and not tile.edges and not tile.rereads:
        stages = min(_most_stages(device) - 1, 1 + math.ceil(missing))
        piped = _fit(replace(fit.tile, num_stages=stages), device, probe)
        piped = _squeezed(piped, _BYTES_IN_FLIGHT, problem, device, probe)
        enough = max(2 * tight.programs, stages * -(-fit.tile.split // device.cores))
        return piped if piped.programs * stages >= enough else tight
    return tight


def _shared_tile(problem: Problem, device: DeviceProperties) -> Tile | None:
    """The parts that are tried first; None if they are too many."""
    widest = _widest(problem, device)
    if problem.layout == "inner" and _rereadable(problem, device):
        return _shared_columns(problem, device)
    if problem.layout == "inner":
        rows, edges = min(_power_above(problem.inner), _RUN), False
        part = max(_LONGEST_PART // rows, _power_above(-(-problem.cols // _PARTS_ACROSS)))
        rows = _neighbours(rows, part, _ELEMENTS_ACROSS)
    else:
        rows, edges = 1, _columns(problem)[1]
        few = 2 * _PARTS * problem.rows <= device.cores and not problem.backward  # then more cores read sooner
        parts = _PARTS_WITH_EDGES if edges else 2 * _PARTS if few else _PARTS
        wanted = _power_above(-(-problem.cols // parts))
        part = max(_SHORTEST_PART, min(_LONGEST_PART, wanted))
    part = max(part, _power_above(-(-problem.cols // (_PROGRAMS_A_CORE * device.cores))))
    if rows * part > widest:
        return None
    bytes_of_few = _FEW_WAVES * _SHARED_BYTES_IN_FLIGHT * device.cores
    many = problem.cols >= 4 * _REREAD_ELEMENTS and problem.rows * problem.cols * problem.itemsize > bytes_of_few
    rereads = many and part <= _REREAD_ELEMENTS and _rereadable(problem, device)
    part = _REREAD_ELEMENTS if rereads else part
    tile = Tile("split", rows, part, 1, edges=edges, exp2_bias=_exp2_bias(problem), rereads=rereads)
    return _parted(tile, part, problem)


def _shared_columns(problem: Problem, device: DeviceProperties) -> Tile:
    """Parts of columns that are read again: of a line of rows, or half of one where two tensors are read.

    Where a tile would have too many words, half of these rows, and longer parts.
    """
    tensors = 2 if problem.backward else 1
    line = _LINE // problem.itemsize // tensors
    rows = min(_power_above(problem.inner), line)
    part = _REREAD_ELEMENTS // tensors // rows
    while -(-problem.cols // part) * rows > _WORDS_ACROSS and rows * part < _most_reread(device):
        rows, part = max(rows // 2, min(rows, line // 2)), 2 * part
    return _parted(Tile("split", rows, part, 1, exp2_bias=_exp2_bias(problem), rereads=True), part, problem)


def _parted(tile: Tile, part: int, problem: Problem) -> Tile:
    """A tile for parts of `part` columns."""
    split = -(-problem.cols // part)
    tile = replace(tile, algorithm="split" if split > 1 else "tile", cols=part, split=split)
    if tile.rereads:
        return _rereading(tile, problem)
    small = part * tile.rows <= _LONGEST_PART or not problem.aligned  # elements with addresses of their own take more
    few = tile.rows > 1 and problem.backward and small
    return replace(tile, num_warps=_warps(tile.rows * part, _FEW_ELEMENTS if few else _MANY_ELEMENTS))


def _rereadable(problem: Problem, device: DeviceProperties) -> bool:
    """Whether to read elements again: of 16 bits, which take twice their size of registers, if a core's cache is ample.

    A core has as much cache as shared memory, if a kernel takes none of this. Columns are read again if there are
    enough for all cores: their tiles are larger then.
    """
    ample = (device.shared_memory or 0) > _AMPLE_SHARED_MEMORY
    size = problem.rows * problem.cols * problem.itemsize
    columns = problem.layout == "inner" and size >= device.cores * _REREAD_BYTES
    wide = problem.layout == "row" and not problem.backward
    return ample and (columns or wide) and problem.itemsize == 2 and problem.aligned


def _rereading(tile: Tile, problem: Problem) -> Tile:
    """A tile whose elements take no registers between two passes."""
    each = _MOST_ELEMENTS // (2 if problem.backward else 1)
    return replace(tile, num_warps=_warps(tile.rows * tile.cols, each), rereads=True)


def _neighbours(rows: int, cols: int, most: int) -> int:
    """So many rows, or fewer if they would be more than `most` elements, but half a run."""
    while 2 * rows > _RUN and rows * cols > most:
        rows //= 2
    return rows


def _columns(problem: Problem) -> tuple[int, bool]:
    """Columns of a tile that holds a row, and whether what is off the boundaries of vectors lies beside it."""
    vector = 16 // ITEMSIZE[problem.dtype]
    if problem.layout == "row" and not problem.aligned and problem.cols >= 4 * vector:
        return _power_above(problem.cols // vector * vector), True
    return _power_above(problem.cols), False


def _looped(problem: Problem, device: DeviceProperties, probe: Probe) -> _Fit:
    """Column tiles of rows, which are read twice."""
    rows, each = (_RUN // 2, _FEW_ELEMENTS // 2) if problem.layout == "inner" else (1, _FEW_ELEMENTS)
    cols = _widest(problem, device) // 4 // rows
    warps, stages = _warps(rows * cols, each), _most_stages(device)
    tile = Tile("looped", rows, cols, warps, num_stages=stages, exp2_bias=_exp2_bias(problem))
    return _fit(tile, device, probe)


def _exp2_bias(problem: Problem) -> float | None:
    """Made up for in float32: nowhere else would it be seen. float64 has an exp of its own."""
    return None if problem.accumulator == 8 else _EXP2_BIAS if problem.out_dtype == "float32" else 0.0


def _in_flight(fit: _Fit, problem: Problem) -> int:
    """Bytes of the tiles that a multiprocessor holds, as far as rows reach."""
    return fit.programs * _bytes_held(fit.tile, problem)


def _bytes_held(tile: Tile, problem: Problem) -> int:
    return tile.rows * min(tile.cols, problem.cols) * _bytes_read(problem)


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
    each = problem.accumulator * (2 if problem.backward else 1) // 4
    return (device.registers or 65536) // 2 // each


def _most_reread(device: DeviceProperties) -> int:
    """Elements that one program reads again, at most."""
    return (device.registers or 65536) // 2


def _bytes_read(problem: Problem) -> int:
    return ITEMSIZE[problem.dtype] + (ITEMSIZE[problem.saved_dtype] if problem.backward else 0)


def _warps(elements: int, each: int) -> int:
    return max(1, min(32, elements // (32 * each)))


def _power_above(value: int) -> int:
    return 1 << (value - 1).bit_length()
