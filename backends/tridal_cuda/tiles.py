"""Which tiles a GPU tries, by a problem's shape alone: rows, columns, warps. What they take is asked in `planning`.

What each number comes from is told, with measurements, in docs/performance-notes.md.
"""

from __future__ import annotations

from dataclasses import replace

from tridal.devices.types import ITEMSIZE, DeviceProperties, Problem, Tile

FEW_ELEMENTS = 32  # that a thread holds of narrow rows, and backward
MANY_ELEMENTS = 64  # that it holds of others
_NARROW_TILE = 1024  # elements of a tile of narrow rows: one warp's; of float32 half of it, forward
_ROWS_WITH_EDGES = 8  # of a tile of narrow rows at least, of which the whole vectors and the ends each fill a warp
WIDE_ROW = 8192  # elements of a row of which a multiprocessor holds so few that their loads leave gaps
FEW_WAVES = 4  # of tiles, whose last one leaves much of the device idle
_RUN = 32  # neighbouring rows that a tile takes at once where a row is not contiguous; half of it if rows are long
_ELEMENTS_ACROSS = 16384  # that a program takes at most, if it doesn't need more to hold half a run

SHARED_BYTES_IN_FLIGHT = 160 << 10  # that keep a multiprocessor's share of memory busy where programs wait
_SHORTEST_PART, _LONGEST_PART = 2048, 8192  # elements of a shared row that one program takes, if enough are resident
_PARTS, _PARTS_WITH_EDGES = 16, 128  # of a shared row, as long as they aren't longer than that
_PART_AT_ONCE = 4096  # elements of a part of few rows, half or twice of it where there would be few or many
_FEWEST_AT_ONCE, _MANY_AT_ONCE, _MOST_AT_ONCE = 16, 48, 128  # parts of them, each of which shows itself to each
_PARTS_ACROSS = 64  # of them at most, so that there aren't more words than elements of a part
_PROGRAMS_A_CORE = 8  # of a shared row at most; those of longer parts take more registers, and fewer are resident

REREAD_BYTES = 112 << 10  # in flight of whole columns or rows that are read again: half of the cache for that
_REREAD_ELEMENTS, _MOST_ELEMENTS = 16384, 128  # of a part that is read again, and of a thread, which doesn't hold them
_REREAD_WARPS = 4  # of a part of a row that is read again: half of these elements or all of them
_IDLE = 1 / 8  # of the elements of such parts at most
_IDLE_WHOLE, _IDLE_WITH_EDGES = 1 / 5, 1 / 4  # of a whole row's tile at most; where more is, rows are held, or shared
_REREAD_ROW_BYTES = 64 << 10  # of such a row at most: the cache bears two
_MOST_REGISTERS = 128  # of a thread that reads again: more than it needs, but with a limit loads come earlier
_SHORTEST_REREAD = 64  # columns that are read again, if they are whole: shorter ones take few registers
_WORDS_ACROSS = 2048  # of a tile at most, where columns are read again
_LINE = 128  # bytes of a line of the cache, which takes room as a whole, however little of it is read
_AMPLE_SHARED_MEMORY = 200_000  # bytes from which a pipeline may have four stages, and a cache as large is read again

_EXP2_BIAS = -5.5e-8  # mean relative error of ex2.approx, on sm_90


def whole(problem: Problem, device: DeviceProperties) -> Tile | None:
    """A tile of whole rows, or None if they are too wide for one. Its sides are powers of two."""
    if problem.layout != "inner":
        return _whole_rows(problem, device)
    cols = power_above(problem.cols)
    if cols >= _SHORTEST_REREAD and _columns_again(problem, device):
        return _whole_columns_again(problem, device)
    widest = widest_held(problem, device)
    rows = min(power_above(problem.inner), max(_RUN, _NARROW_TILE // cols))
    most = min(widest, _ELEMENTS_ACROSS)
    if problem.aligned or problem.backward:
        rows = _neighbours(rows, cols, most)
    elif problem.itemsize > 2:  # each element has an address, and that of two bytes takes as many registers
        most = widest
    if rows * cols > most:
        return None
    warps = warps_for(rows * cols, FEW_ELEMENTS if problem.backward else MANY_ELEMENTS)
    return Tile("tile", rows, cols, warps, exp2_bias=_exp2_bias(problem), persistent=False)


def _whole_rows(problem: Problem, device: DeviceProperties) -> Tile | None:
    cols, edges = _columns(problem)
    half = problem.itemsize == 2 and not problem.backward
    full = half or problem.backward or edges or cols < (device.warp_size or 32)
    rows = max(1, (_NARROW_TILE if full else _NARROW_TILE // 2) // cols)
    if edges and rows >= _ROWS_WITH_EDGES // 2:  # ends take as many registers however narrow a row is
        rows = max(_ROWS_WITH_EDGES, rows if half else rows // 2)
    rows = min(power_above(problem.inner), rows)
    again = _rows_again(cols, edges, problem, device)
    if rows * cols > (_half_of_registers(device) if again else widest_held(problem, device)):
        return None
    many = cols > _NARROW_TILE and not problem.backward
    narrow = edges and half and rows >= _ROWS_WITH_EDGES
    warps = 2 if narrow else warps_for(rows * cols, MANY_ELEMENTS if many else FEW_ELEMENTS)
    tile = Tile("tile", rows, cols, warps, edges=edges, exp2_bias=_exp2_bias(problem), persistent=False)
    return _rereading(tile, problem) if again else tile


def _rows_again(cols: int, edges: bool, problem: Problem, device: DeviceProperties) -> bool:
    """Whether whole rows are read again, in tiles of `cols` columns.

    Gradients of 16 bits, where a core would hold too few of them. Others in tiles that are nearly full, of which the
    cache bears two: half as long ones if there are many waves of them; longer ones if their ends lie beside them, or if
    they are weighed, as a mask is read again, too.
    """
    if problem.layout != "row" or problem.accumulator > 4 or not _caches(device):
        return False
    if problem.backward:
        return cols > WIDE_ROW and problem.itemsize == 2
    many = _bytes(problem) > FEW_WAVES * REREAD_BYTES * device.cores
    least = 4 * WIDE_ROW if problem.weighed else 2 * WIDE_ROW if edges else WIDE_ROW // 2 if many else WIDE_ROW
    nearly_full = problem.cols > (1 - (_IDLE_WITH_EDGES if edges else _IDLE_WHOLE)) * cols
    return cols >= least and nearly_full and cols * problem.itemsize <= _REREAD_ROW_BYTES


def _whole_columns_again(problem: Problem, device: DeviceProperties) -> Tile | None:
    """A tile of whole columns that are read again; None if lines of them are more than the cache bears.

    Half a line wastes half of the cache. So it is only for a gradient, which reads twice and not three times; and there
    too, only if the tile is too large otherwise, or lets no second program in where that is of use: because the cache
    bears two, or because a multiprocessor has few tiles.
    """
    cols, most = power_above(problem.cols), _half_of_registers(device)
    line = _LINE // problem.itemsize
    rows = min(power_above(problem.inner), line)
    two_fit = 2 * problem.cols * _LINE * 2 <= (device.shared_memory or 0)
    few = problem.tiles(line) < FEW_WAVES * device.cores
    if problem.backward and rows == line and rows * cols > (most // 2 if two_fit or few else most):
        rows //= 2
    if rows * cols > most:
        return None
    tile = Tile("tile", rows, cols, exp2_bias=_exp2_bias(problem), persistent=False)
    return _rereading(tile, problem)


def at_once(problem: Problem, device: DeviceProperties) -> Tile | None:
    """The parts of so few rows that every part may be resident; None if there would be too many."""
    if problem.layout == "inner":
        return None
    part = _PART_AT_ONCE
    if problem.cols <= part * (_FEWEST_AT_ONCE - 1):
        part //= 2
    elif problem.cols > part * _MANY_AT_ONCE:
        part *= 2
    split = -(-problem.cols // part)
    if split == 1 or split > _MOST_AT_ONCE:
        return None
    edges, bias = _columns(problem)[1], _exp2_bias(problem)
    tile = Tile("split", 1, part, split=split, edges=edges, exp2_bias=bias, persistent=False)
    if problem.layout == "row" and _caches(device):  # else a line of the cache would hold little of a row
        return replace(tile, rereads=True, max_registers=_MOST_REGISTERS)
    return tile


def shared(problem: Problem, device: DeviceProperties) -> Tile | None:
    """The parts of rows that are tried first; None if there would be too many."""
    if problem.layout == "inner":
        if _columns_again(problem, device):
            return _shared_columns_again(problem, device)
        rows, edges = min(power_above(problem.inner), _RUN), False
        part = max(_LONGEST_PART // rows, power_above(-(-problem.cols // _PARTS_ACROSS)))
        rows = _neighbours(rows, part, _ELEMENTS_ACROSS)
    else:
        rows, edges = 1, _columns(problem)[1]
        part = power_above(-(-problem.cols // (_PARTS_WITH_EDGES if edges else _PARTS)))
        part = max(_SHORTEST_PART, min(_LONGEST_PART, part))
    part = max(part, power_above(-(-problem.cols // (_PROGRAMS_A_CORE * device.cores))))
    if rows * part > widest_held(problem, device):
        return None
    return parted(Tile("split", rows, part, edges=edges, exp2_bias=_exp2_bias(problem)), part, problem)


def shared_again(problem: Problem, device: DeviceProperties) -> Tile | None:
    """The parts of rows that are read again; None if rows aren't, are few, or would leave too much of parts idle.

    Nor are those of gradients: two tensors are as many bytes again, and fewer of their parts fit a core's cache.
    """
    edges = _columns(problem)[1]
    least = 4 * _REREAD_ELEMENTS if edges else _REREAD_ELEMENTS
    shared = problem.layout == "row" and not problem.backward and problem.cols >= least
    few = _bytes(problem) <= FEW_WAVES * SHARED_BYTES_IN_FLIGHT * device.cores
    if not shared or few or problem.itemsize > 2 or not _caches(device):
        return None
    for part in (_REREAD_ELEMENTS, _REREAD_ELEMENTS // 2):
        split = -(-problem.cols // part)
        if 1 < split <= _PROGRAMS_A_CORE * device.cores and problem.cols >= (1 - _IDLE) * split * part:
            bias = _exp2_bias(problem)
            return Tile("split", 1, part, _REREAD_WARPS, split=split, edges=edges, exp2_bias=bias, rereads=True)
    return None


def _shared_columns_again(problem: Problem, device: DeviceProperties) -> Tile | None:
    """Parts of columns that are read again: of a line of rows, or half of one where two tensors are read.

    Where a tile would have too many words, half of these rows, and longer parts; None if there would be too many.
    """
    tensors = 2 if problem.backward else 1
    line = _LINE // problem.itemsize // tensors
    rows = min(power_above(problem.inner), line)
    part = _REREAD_ELEMENTS // tensors // rows
    while -(-problem.cols // part) * rows > _WORDS_ACROSS and rows * part < _half_of_registers(device):
        rows, part = max(rows // 2, min(rows, line // 2)), 2 * part
    if -(-problem.cols // part) > _PROGRAMS_A_CORE * device.cores:
        return None
    return parted(Tile("split", rows, part, exp2_bias=_exp2_bias(problem), rereads=True), part, problem)


def parted(tile: Tile, part: int, problem: Problem) -> Tile:
    """A tile for parts of `part` columns."""
    split = -(-problem.cols // part)
    tile = replace(tile, algorithm="split" if split > 1 else "tile", cols=part, split=split)
    if tile.rereads:
        return _rereading(tile, problem)
    small = part * tile.rows <= _LONGEST_PART or not problem.aligned  # elements with addresses of their own take more
    few = tile.rows > 1 and problem.backward and small
    return replace(tile, num_warps=warps_for(tile.rows * part, FEW_ELEMENTS if few else MANY_ELEMENTS))


def looped(problem: Problem, device: DeviceProperties) -> Tile:
    """Column tiles of rows, which are read twice."""
    rows, each = (_RUN // 2, FEW_ELEMENTS // 2) if problem.layout == "inner" else (1, FEW_ELEMENTS)
    cols = widest_held(problem, device) // 4 // rows
    warps, stages = warps_for(rows * cols, each), most_stages(device)
    return Tile("looped", rows, cols, warps, num_stages=stages, exp2_bias=_exp2_bias(problem))


def bytes_held(tile: Tile, problem: Problem) -> int:
    """Bytes that a program reads for a tile, as far as rows reach."""
    each = ITEMSIZE[problem.dtype] + (ITEMSIZE[problem.saved_dtype] if problem.backward else 0)
    return tile.rows * min(tile.cols, problem.cols) * each


def widest_held(problem: Problem, device: DeviceProperties) -> int:
    """Elements that one program holds at most: half of the registers, by those that an element takes."""
    return _half_of_registers(device) // (problem.accumulator * (2 if problem.backward else 1) // 4)


def most_stages(device: DeviceProperties) -> int:
    """Stages that a pipeline may have."""
    return 4 if _caches(device) else 2


def warps_for(elements: int, each: int) -> int:
    """Warps for so many elements, `each` of them a thread's."""
    return max(1, min(32, elements // (32 * each)))


def power_above(value: int) -> int:
    """The least power of two that is no less."""
    return 1 << (value - 1).bit_length()


def _columns_again(problem: Problem, device: DeviceProperties) -> bool:
    """Whether columns are read again: of 16 bits, which take twice their size of registers.

    And if there are enough for all cores, as their tiles are larger then.
    """
    enough = _bytes(problem) >= device.cores * REREAD_BYTES
    return _caches(device) and problem.aligned and problem.itemsize == 2 and enough


def _bytes(problem: Problem) -> int:
    """Of one tensor, at its widest."""
    return problem.rows * problem.cols * problem.itemsize


def _caches(device: DeviceProperties) -> bool:
    """Whether a core has an ample cache: as much of it as of shared memory, if a kernel takes none of this."""
    return (device.shared_memory or 0) > _AMPLE_SHARED_MEMORY


def _rereading(tile: Tile, problem: Problem) -> Tile:
    """A tile whose elements take no registers between two passes."""
    fewer = problem.backward or (problem.layout == "row" and tile.cols <= _REREAD_ELEMENTS)
    each = _MOST_ELEMENTS // (2 if fewer else 1)
    return replace(tile, num_warps=warps_for(tile.rows * tile.cols, each), rereads=True)


def _neighbours(rows: int, cols: int, most: int) -> int:
    """So many rows, or fewer if they would be more than `most` elements, but half a run."""
    while 2 * rows > _RUN and rows * cols > most:
        rows //= 2
    return rows


def _columns(problem: Problem) -> tuple[int, bool]:
    """Columns of a tile that holds a row, and whether what is off the boundaries of vectors lies beside it."""
    vector = 16 // ITEMSIZE[problem.dtype]
    if problem.layout == "row" and not problem.aligned and problem.cols >= 4 * vector:
        return power_above(problem.cols // vector * vector), True
    return power_above(problem.cols), False


def _half_of_registers(device: DeviceProperties) -> int:
    return (device.registers or 65536) // 2


def _exp2_bias(problem: Problem) -> float | None:
    """Made up for in float32: nowhere else would it be seen. float64 has an exp of its own."""
    return None if problem.accumulator == 8 else _EXP2_BIAS if problem.out_dtype == "float32" else 0.0
