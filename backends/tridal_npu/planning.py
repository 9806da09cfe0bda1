"""Makes the launch plan for an NPU: a fixed number of programs, and tiles that fit in the unified buffer.

A program runs on a vector core and loops over its tiles. If there are more programs than vector cores, some run later.
The number of programs does not grow with the rows, because triton-ascend rejects 65,536 programs or more.
"""

from __future__ import annotations

from dataclasses import replace

from tridal.devices.types import (
    ITEMSIZE,
    DeviceProperties,
    KernelConfig,
    LaunchPlan,
    Problem,
    Schedule,
    next_power_of_2,
)
from tridal.errors import PlanError
from tridal_npu.architectures import SMALLEST_UNIFIED_BUFFER
from tridal_npu.resources import limit

_BLOCK = 32  # bytes; data in the unified buffer is aligned to it, so the last axis of a tile is never narrower
_MIN_TRANSFER = 256  # bytes of neighboring rows; smaller transfers are inefficient
_MAX_INNER_ROWS = 1024  # in the "inner" layout; the statistics of more rows would take too much of the unified buffer


def plan(
    problem: Problem, device: DeviceProperties, num_programs: int | str, given: KernelConfig | None = None
) -> LaunchPlan:
    """Plans at most `num_programs` programs. "cores" means one program per vector core.

    The plan has the configuration `given`, if there is one. Raises PlanError if its tile does not fit.
    """
    unified_buffer = device.shared_memory or SMALLEST_UNIFIED_BUFFER
    wanted, origin = num_programs, "num_programs"
    if isinstance(wanted, str):
        wanted, origin = device.cores, f"one per {device.core_name}"
    config = given or _choose_config(problem, unified_buffer, wanted)
    tiles, elements = problem.tiles(config.rows), config.rows * config.cols
    found = LaunchPlan(config, wanted if config.persistent else None, "")
    programs = found.programs_for(tiles, problem.blocks)
    limits = limit(problem, config.schedule, config.rows, unified_buffer)
    if elements > limits.max_elements:
        raise PlanError(f"a tile has at most {limits.max_elements} elements, not {config.rows} x {config.cols}")
    tile_bytes = -(-elements * unified_buffer // limits.max_elements)
    double_buffered = "" if elements <= limits.max_double_buffered else "not "
    live_tiles = f"{problem.live_tiles} live tile" + "s" * (problem.live_tiles != 1)
    reason = (
        f"{programs} programs = min({origin} {wanted}, {tiles} tiles); {problem.rows} rows in tiles of {config.rows} x "
        f"{config.cols} = {elements} elements, which take about {tile_bytes} of the unified buffer's {unified_buffer} "
        f"bytes before double buffering (limit for {live_tiles}, {config.schedule}, "
        f"{problem.layout} layout: {limits.max_elements} elements, {limits.max_double_buffered} double-buffered): "
        f"{double_buffered}double-buffered"
    )
    return replace(found, reason=reason)


def _choose_config(problem: Problem, unified_buffer: int, programs: int) -> KernelConfig:
    """Chooses `whole_row` if a row fits in a tile, and else `column_loop`."""

    def max_tile(schedule: Schedule, rows: int) -> int:
        """The most elements of a double-buffered tile."""
        return limit(problem, schedule, rows, unified_buffer).max_double_buffered

    def tile_rows(most: int) -> int:
        """Chooses at most `most` rows per tile, and so few that each program gets a tile."""
        return min(next_power_of_2(problem.inner, most), max(1, problem.rows // programs))

    narrowest = min(ITEMSIZE[dtype] for dtype in problem.element_dtypes)
    elements_per_block = _BLOCK // narrowest
    cols = next_power_of_2(problem.cols)
    if problem.layout == "inner":
        whole_row_tile = max_tile("whole_row", elements_per_block)
        if cols * elements_per_block <= whole_row_tile or problem.whole_rows:
            rows = tile_rows(min(_MAX_INNER_ROWS, max(1, whole_row_tile // cols)))
            return _config("whole_row", max(elements_per_block, rows), cols)
        rows = max(elements_per_block, tile_rows(_MIN_TRANSFER // problem.itemsize))
        return _config("column_loop", rows, max_tile("column_loop", rows) // rows)
    cols = max(cols, elements_per_block)
    if cols > limit(problem, "whole_row", 1, unified_buffer).max_elements and not problem.whole_rows:
        return _config("column_loop", 1, max_tile("column_loop", 1))
    return _config("whole_row", tile_rows(max(1, max_tile("whole_row", 2) // cols)), cols)


def _config(schedule: Schedule, rows: int, cols: int) -> KernelConfig:
    """Rounds `rows` and `cols` down to powers of two."""
    return KernelConfig(schedule, 1 << (rows.bit_length() - 1), 1 << (cols.bit_length() - 1))
