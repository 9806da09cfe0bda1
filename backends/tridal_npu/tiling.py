"""The launch plan of an NPU: a fixed number of programs, and tiles that fit the unified buffer. Arithmetic alone.

A program runs on a vector core and loops over its tiles. More programs than vector cores run one after the other, and
triton-ascend refuses 65,536 or more, so their number never follows the number of rows.
"""

from __future__ import annotations

from tridal.devices.types import ITEMSIZE, Algorithm, DeviceProperties, LaunchPlan, Problem, Tile
from tridal_npu.architectures import SMALLEST_UNIFIED_BUFFER
from tridal_npu.unified_buffer import limit

_BLOCK = 32  # bytes that the unified buffer and its data paths are aligned to: a tile's last axis is never narrower
_RUN = 256  # bytes of neighbouring rows that are worth a transfer where a tile can't hold all of a row
_MOST_NEIGHBOURS = 1_024  # rows: a maximum and a sum for each of more would count beside the tile itself


def plan(problem: Problem, device: DeviceProperties, num_programs: int | str) -> LaunchPlan:
    """As many programs as asked for, or "cores" for one a vector core; never more than there are tiles."""
    unified_buffer = device.shared_memory or SMALLEST_UNIFIED_BUFFER
    wanted = device.cores if isinstance(num_programs, str) else num_programs
    tile = choose_tile(problem, unified_buffer, wanted)
    tiles = problem.tiles(tile.rows)
    programs = min(tiles, wanted)
    limits = limit(problem, tile.algorithm, tile.rows, unified_buffer)
    elements = tile.rows * tile.cols
    double = "" if elements <= limits.double_buffered else "not "
    origin = f"one a {device.core_name}" if isinstance(num_programs, str) else "num_programs"
    return LaunchPlan(
        tile,
        programs,
        reason=(
            f"{programs} programs = min({origin} {wanted}, {tiles} tiles); {problem.rows} rows in tiles of "
            f"{tile.rows} x {tile.cols} = {elements} elements, which take about "
            f"{-(-elements * unified_buffer // limits.accepted)} of the unified buffer's {unified_buffer} bytes before "
            f"double buffering (limit for {problem.op}, {tile.algorithm}, {problem.layout} layout: {limits.accepted} "
            f"elements, {limits.double_buffered} double-buffered): {double}double-buffered"
        ),
    )


def choose_tile(problem: Problem, unified_buffer: int, programs: int) -> Tile:
    """Powers of two: whole rows if one fits, else column tiles; several rows while every program has a tile."""

    def elements(algorithm: Algorithm, rows: int) -> int:
        return limit(problem, algorithm, rows, unified_buffer).double_buffered

    aligned = _BLOCK // _smallest_item(problem)
    share = max(1, problem.rows // programs)
    if problem.layout == "inner":
        cols = _power_above(problem.cols)
        most_rows = min(share, _power_above(problem.inner), _MOST_NEIGHBOURS)
        if cols * aligned <= elements("tile", aligned):
            return _tile("tile", max(aligned, min(most_rows, elements("tile", aligned) // cols)), cols)
        rows = max(aligned, min(most_rows, _RUN // problem.itemsize))
        return _tile("looped", rows, elements("looped", rows) // rows)
    cols = max(_power_above(problem.cols), aligned)
    if cols > limit(problem, "tile", 1, unified_buffer).accepted:
        return _tile("looped", 1, elements("looped", 1))
    return _tile("tile", max(1, min(share, _power_above(problem.inner), elements("tile", 2) // cols)), cols)


def _tile(algorithm: Algorithm, rows: int, cols: int) -> Tile:
    return Tile(algorithm, _power_below(rows), _power_below(cols))


def _smallest_item(problem: Problem) -> int:
    dtypes = {problem.dtype, problem.out_dtype} | ({problem.saved_dtype} if problem.backward else set())
    return min(ITEMSIZE[dtype] for dtype in dtypes)


def _power_above(value: int) -> int:
    return 1 << (value - 1).bit_length()


def _power_below(value: int) -> int:
    return 1 << (value.bit_length() - 1)
