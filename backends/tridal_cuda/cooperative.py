"""Configurations of the schedule `cooperative`: several programs compute each row, and each holds a block of columns.

They depend on shapes only, not on resources. `planning` checks that all programs of a row can be resident.
"""

from __future__ import annotations

from dataclasses import replace

from tridal.devices.types import DeviceProperties, KernelConfig, Problem, Schedule
from tridal_cuda.sizes import (
    CACHE_LINE,
    FEW_ELEMENTS_PER_THREAD,
    MANY_ELEMENTS_PER_THREAD,
    MAX_INNER_ELEMENTS,
    MIN_WAVES,
    NEIGHBOUR_ROWS,
    RELOAD_TILE_ELEMENTS,
    bytes_per_tensor,
    enough_for_inner_reload,
    exp2_bias,
    half_of_registers,
    has_large_l1,
    limit_rows,
    max_elements,
    next_power_of_2,
    reads_several,
    tile_cols,
    warps_for,
    with_reload,
)

COOPERATIVE_BYTES_IN_FLIGHT = 160 << 10
"""Bytes of resident tiles that keep a multiprocessor's share of the memory busy while programs wait for each other."""
_MAX_PROGRAMS_PER_CORE = 8
"""Programs of one row per multiprocessor. Wider blocks need more registers, so fewer of them can be resident."""

_MIN_BLOCK_COLS, _MAX_BLOCK_COLS = 2048, 8192
"""Columns of a block, if there are not too many blocks."""
_BLOCKS_PER_ROW, _PEELED_BLOCKS_PER_ROW = 16, 128
"""Blocks of a row between these sizes, aligned and peeled."""
_INNER_BLOCKS_PER_ROW = 64
"""Blocks of an inner-dim row. With more, a program would read more values of other programs than elements."""

_ONE_SHOT_BLOCK_COLS = 4096
"""Columns of a block in a one-shot plan. Half of it if there are few blocks, and twice as much if there are many."""
_ONE_SHOT_FEW_BLOCKS, _ONE_SHOT_MANY_BLOCKS = 16, 48
"""Fewer blocks than the first number are few; more than the second are many."""
_ONE_SHOT_MAX_BLOCKS = 128
"""Blocks of a row in a one-shot plan. Each program sends a value to each other program of the row."""
_ONE_SHOT_RELOAD_REGISTERS = 128
"""Registers per thread in a one-shot plan with `reload`: enough, and any limit makes the compiler load earlier."""

_RELOAD_WARPS = 4
_MAX_IDLE = 1 / 8
"""Share of padding elements in the blocks of a row with `reload`."""
_MAX_EXCHANGED_VALUES = 2048
"""64-bit values that the programs of a tile exchange, for inner-dim rows with `reload`."""


def cooperative_one_shot(problem: Problem, device: DeviceProperties) -> KernelConfig | None:
    """A configuration for few rows, with one program per block; None if a row has one block or too many.

    `planning` uses it only if the blocks of all rows can be resident at the same time.
    """
    if problem.layout == "inner":
        return None
    cols = _ONE_SHOT_BLOCK_COLS
    if problem.cols <= cols * (_ONE_SHOT_FEW_BLOCKS - 1):
        cols //= 2
    elif problem.cols > cols * _ONE_SHOT_MANY_BLOCKS:
        cols *= 2
    blocks = -(-problem.cols // cols)
    if blocks == 1 or blocks > _ONE_SHOT_MAX_BLOCKS:
        return None
    _, peel = tile_cols(problem)
    config = KernelConfig(
        "cooperative", 1, cols, programs_per_row=blocks, peel=peel, exp2_bias=exp2_bias(problem), persistent=False
    )
    if problem.layout == "row" and has_large_l1(device):  # the cache lines of strided elements hold little of a row
        return replace(config, reload=True, max_registers=_ONE_SHOT_RELOAD_REGISTERS)
    return config


def cooperative(problem: Problem, device: DeviceProperties) -> KernelConfig | None:
    """The first configuration to try; None if a row would need too many programs."""
    if problem.layout == "inner":
        if enough_for_inner_reload(problem, device):
            return _inner_with_reload(problem, device)
        rows, peel = min(next_power_of_2(problem.inner), NEIGHBOUR_ROWS), False
        cols = max(_MAX_BLOCK_COLS // rows, next_power_of_2(-(-problem.cols // _INNER_BLOCKS_PER_ROW)))
        rows = limit_rows(rows, cols, MAX_INNER_ELEMENTS)
    else:
        rows, (_, peel) = 1, tile_cols(problem)
        cols = next_power_of_2(-(-problem.cols // (_PEELED_BLOCKS_PER_ROW if peel else _BLOCKS_PER_ROW)))
        cols = max(_MIN_BLOCK_COLS, min(_MAX_BLOCK_COLS, cols))
    cols = max(cols, next_power_of_2(-(-problem.cols // (_MAX_PROGRAMS_PER_CORE * device.cores))))
    if rows * cols > max_elements(problem, device):
        return None
    config = KernelConfig("cooperative", rows, cols, peel=peel, exp2_bias=exp2_bias(problem))
    return with_block_cols(config, cols, problem)


def cooperative_reload(problem: Problem, device: DeviceProperties) -> KernelConfig | None:
    """A configuration with `reload` for many wide rows of one 16-bit tensor; None for other rows.

    It is None as well if the blocks would have too much padding. If two tensors are read, `reload` does not help: fewer
    blocks fit in the L1 cache.
    """
    _, peel = tile_cols(problem)
    min_cols = 4 * RELOAD_TILE_ELEMENTS if peel else RELOAD_TILE_ELEMENTS
    if problem.layout != "row" or reads_several(problem) or problem.cols < min_cols:
        return None
    few = bytes_per_tensor(problem) <= MIN_WAVES * COOPERATIVE_BYTES_IN_FLIGHT * device.cores
    if few or problem.itemsize > 2 or not has_large_l1(device):
        return None
    for cols in (RELOAD_TILE_ELEMENTS, RELOAD_TILE_ELEMENTS // 2):
        blocks = -(-problem.cols // cols)
        nearly_full = problem.cols >= (1 - _MAX_IDLE) * blocks * cols
        if 1 < blocks <= _MAX_PROGRAMS_PER_CORE * device.cores and nearly_full:
            config = KernelConfig("cooperative", 1, cols, _RELOAD_WARPS, programs_per_row=blocks, peel=peel)
            return replace(config, exp2_bias=exp2_bias(problem), reload=True)
    return None


def with_block_cols(config: KernelConfig, cols: int, problem: Problem) -> KernelConfig:
    """The configuration with blocks of `cols` columns. With one block per row, its schedule is "whole_row"."""
    blocks = -(-problem.cols // cols)
    schedule: Schedule = "cooperative" if blocks > 1 else "whole_row"
    config = replace(config, schedule=schedule, cols=cols, programs_per_row=blocks)
    if config.reload:
        return with_reload(config, problem)
    # Unaligned elements each have an address, so a thread needs more registers for them.
    small = cols * config.rows <= _MAX_BLOCK_COLS or not problem.aligned
    few = config.rows > 1 and reads_several(problem) and small
    elements_per_thread = FEW_ELEMENTS_PER_THREAD if few else MANY_ELEMENTS_PER_THREAD
    return replace(config, num_warps=warps_for(config.rows * cols, elements_per_thread))


def _inner_with_reload(problem: Problem, device: DeviceProperties) -> KernelConfig | None:
    """Blocks of inner-dim rows with `reload`; None if a row would need too many programs.

    A tile reads full cache lines, or half of each line if two tensors are read. If its programs would exchange too many
    values, the tile has half as many rows and wider blocks.
    """
    tensors = 2 if reads_several(problem) else 1
    rows_per_line = CACHE_LINE // problem.itemsize // tensors
    rows = min(next_power_of_2(problem.inner), rows_per_line)
    cols = RELOAD_TILE_ELEMENTS // tensors // rows
    while -(-problem.cols // cols) * rows > _MAX_EXCHANGED_VALUES and rows * cols < half_of_registers(device):
        rows, cols = max(rows // 2, min(rows, rows_per_line // 2)), 2 * cols
    if -(-problem.cols // cols) > _MAX_PROGRAMS_PER_CORE * device.cores:
        return None
    config = KernelConfig("cooperative", rows, cols, exp2_bias=exp2_bias(problem), reload=True)
    return with_block_cols(config, cols, problem)
