"""The launch plan of an NPU: a fixed number of programs, and tiles that fit in the unified buffer. Arithmetic only.

A program runs on a vector core and loops over its tiles. If there are more programs than vector cores, they run one
after another. triton-ascend rejects 65,536 programs or more, so the number of programs does not depend on the number of
rows.

A plan depends on the traits of a problem, and never on the name of an op.
"""

from __future__ import annotations

from tridal.devices.types import ITEMSIZE, DeviceProperties, KernelConfig, LaunchPlan, Problem, Schedule
from tridal_npu.architectures import SMALLEST_UNIFIED_BUFFER
from tridal_npu.unified_buffer import limit

_BLOCK = 32
"""Bytes. The unified buffer and its data paths are aligned to it, so the last axis of a tile is never narrower."""
_MIN_TRANSFER = 256
"""Bytes of neighbouring rows that make a transfer efficient, if a tile cannot hold whole rows."""
_MAX_INNER_ROWS = 1024
"""Rows of a tile in the "inner" layout. The statistics of more rows would take too much of the unified buffer."""


def plan(problem: Problem, device: DeviceProperties, num_programs: int | str) -> LaunchPlan:
    """Plans `num_programs` programs ("cores": one per vector core), but never more than there are tiles."""
    unified_buffer = device.shared_memory or SMALLEST_UNIFIED_BUFFER
    per_core = isinstance(num_programs, str)
    wanted = device.cores if isinstance(num_programs, str) else num_programs
    config = choose_config(problem, unified_buffer, wanted)
    tiles, elements = problem.tiles(config.rows), config.rows * config.cols
    programs = min(tiles, wanted)
    limits = limit(problem, config.schedule, config.rows, unified_buffer)
    tile_bytes = -(-elements * unified_buffer // limits.max_elements)
    double_buffered = "" if elements <= limits.max_double_buffered else "not "
    live_tiles = f"{problem.live_tiles} live tile" + "s" * (problem.live_tiles != 1)
    origin = f"one per {device.core_name}" if per_core else "num_programs"
    reason = (
        f"{programs} programs = min({origin} {wanted}, {tiles} tiles); {problem.rows} rows in tiles of {config.rows} x "
        f"{config.cols} = {elements} elements, which take about {tile_bytes} of the unified buffer's {unified_buffer} "
        f"bytes before double buffering (limit for {live_tiles}, {config.schedule}, "
        f"{problem.layout} layout: {limits.max_elements} elements, {limits.max_double_buffered} double-buffered): "
        f"{double_buffered}double-buffered"
    )
    return LaunchPlan(config, programs, reason)


def choose_config(problem: Problem, unified_buffer: int, programs: int) -> KernelConfig:
    """Chooses `whole_row` if a row fits in a tile, else `column_loop`.

    A tile has several rows, but only as many as leave a tile for each of the `programs`. `unified_buffer` is in bytes.
    """

    def max_tile(schedule: Schedule, rows: int) -> int:
        """Elements of a double-buffered tile."""
        return limit(problem, schedule, rows, unified_buffer).max_double_buffered

    elements_per_block = _BLOCK // _min_itemsize(problem)
    rows_per_program = max(1, problem.rows // programs)
    max_rows = min(rows_per_program, _next_power_of_2(problem.inner))
    if problem.layout == "inner":
        cols, max_rows = _next_power_of_2(problem.cols), min(max_rows, _MAX_INNER_ROWS)
        whole_row_tile = max_tile("whole_row", elements_per_block)
        if cols * elements_per_block <= whole_row_tile:
            return _config("whole_row", max(elements_per_block, min(max_rows, whole_row_tile // cols)), cols)
        rows = max(elements_per_block, min(max_rows, _MIN_TRANSFER // problem.itemsize))
        return _config("column_loop", rows, max_tile("column_loop", rows) // rows)
    cols = max(_next_power_of_2(problem.cols), elements_per_block)
    if cols > limit(problem, "whole_row", 1, unified_buffer).max_elements:
        return _config("column_loop", 1, max_tile("column_loop", 1))
    return _config("whole_row", max(1, min(max_rows, max_tile("whole_row", 2) // cols)), cols)


def _config(schedule: Schedule, rows: int, cols: int) -> KernelConfig:
    """The configuration with both sizes rounded down to powers of two."""
    return KernelConfig(schedule, _previous_power_of_2(rows), _previous_power_of_2(cols))


def _min_itemsize(problem: Problem) -> int:
    """Bytes of the narrowest element that is read or written."""
    return min(ITEMSIZE[dtype] for dtype in (*problem.reads, *problem.writes))


def _next_power_of_2(value: int) -> int:
    return 1 << (value - 1).bit_length()


def _previous_power_of_2(value: int) -> int:
    return 1 << (value.bit_length() - 1)
