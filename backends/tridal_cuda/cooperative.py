"""The schedule `cooperative` on a GPU: several programs compute each row, and each holds a block of columns."""

from __future__ import annotations

import math
from dataclasses import replace

from tridal.devices.types import KernelConfig, Schedule
from tridal_cuda import tuning
from tridal_cuda.gpu_problem import Fit, GpuProblem, cdiv, limit_rows, next_power_of_2, warps_for
from tridal_cuda.resources import max_registers_for


def fit_cooperative(problem: GpuProblem) -> Fit | None:
    """Fits a configuration whose programs of a row are all resident at once; None if there is none.

    The result is a `whole_row` configuration if the whole row fits in one of its column blocks.
    """
    if problem.accumulator == 8:
        return None  # float64 statistics do not fit in the 64-bit word that programs exchange
    return _fit_one_shot(problem) or _fit_row_reload(problem) or _fit_blocks(problem)


def _fit_one_shot(problem: GpuProblem) -> Fit | None:
    """Fits few rows with one program per block; None if a row has one block, too many, or not all can be resident."""
    cols = next((block for row, block in tuning.ONE_SHOT_BLOCK_COLS if problem.cols <= row), None)
    if cols is None or problem.cols <= cols or problem.layout == "inner":
        return None
    config = KernelConfig("cooperative", 1, cols, programs_per_row=cdiv(problem.cols, cols), persistent=False)
    needed = cdiv(config.programs_per_row * problem.rows, problem.device.cores)  # programs on a multiprocessor
    in_cache = needed * problem.bytes_per_tile(config) <= (problem.device.shared_memory or 0)
    # The cache lines of strided elements hold little of a row.
    config = replace(config, reload=problem.layout == "row" and problem.has_large_l1 and in_cache)
    fast = _fit_resident(config, tuning.FEW_ELEMENTS_PER_THREAD, needed, problem)  # more warps per program are faster
    if fast is not None and not fast.resources.spills:
        return fast
    # A 32-bit element needs as many bytes in a register as in the cache.
    config = replace(config, reload=config.reload and problem.itemsize == 2)
    slow = _fit_resident(config, tuning.MANY_ELEMENTS_PER_THREAD, needed, problem)
    return min(filter(None, (slow, fast)), key=lambda fitted: fitted.resources.spills, default=None)


def _fit_resident(config: KernelConfig, elements_per_thread: int, needed: int, problem: GpuProblem) -> Fit | None:
    """Fits at least `needed` programs on a multiprocessor, with a register limit if necessary; None if not possible."""
    registers = tuning.ONE_SHOT_RELOAD_REGISTERS if config.reload else None
    config = replace(config, num_warps=warps_for(config.cols, elements_per_thread), max_registers=registers)
    limit = max_registers_for(needed, config, problem.device)
    if limit <= tuning.FEW_ELEMENTS_PER_THREAD:  # fewer registers than a thread has elements
        return None
    fitted = problem.fit(config)
    if fitted.occupancy < needed:
        fitted = problem.fit(replace(config, max_registers=limit))
    return fitted if fitted.occupancy >= needed and fitted.resources.spills <= tuning.MAX_SPILL_ONE_SHOT else None


def _fit_row_reload(problem: GpuProblem) -> Fit | None:
    """Fits many wide rows of one 16-bit tensor with `reload`; None for other rows and for blocks with much padding.

    If two tensors are read, `reload` does not help, because fewer blocks fit in the L1 cache.
    """
    min_cols = (4 if problem.peel else 1) * tuning.RELOAD_TILE_ELEMENTS
    if problem.layout != "row" or problem.reads_several or problem.cols < min_cols:
        return None
    few = problem.bytes_per_tensor <= tuning.MIN_WAVES * tuning.COOPERATIVE_BYTES_IN_FLIGHT * problem.device.cores
    if few or problem.itemsize > 2 or not problem.has_large_l1:
        return None
    for cols in (tuning.RELOAD_TILE_ELEMENTS, tuning.RELOAD_TILE_ELEMENTS // 2):
        blocks = cdiv(problem.cols, cols)
        nearly_full = problem.cols >= (1 - tuning.MAX_PADDING_BLOCKS) * blocks * cols
        if nearly_full and 1 < blocks <= tuning.ROW_PROGRAMS_PER_CORE * problem.device.cores:
            config = KernelConfig("cooperative", 1, cols, tuning.RELOAD_WARPS, programs_per_row=blocks, reload=True)
            fitted = problem.fit(config)
            fitted = fitted.with_register_limit(tuning.COOPERATIVE_BYTES_IN_FLIGHT, tuning.MAX_SPILL_RELOAD)
            return fitted if fitted.resident >= blocks else None
    return None


def _fit_blocks(problem: GpuProblem) -> Fit | None:
    """Fits blocks of columns, doubled until all programs of a row are resident; None if a block becomes too large."""
    reload = problem.layout == "inner" and problem.reloads_inner_rows
    tile = _first_inner_tile_with_reload(problem) if reload else _first_tile(problem)
    if tile is None:
        return None
    rows, cols = tile
    fitted = problem.fit(_block_config(rows, cols, reload, problem))
    while fitted.resident < fitted.config.programs_per_row:
        cols *= 2
        if rows * cols > problem.max_elements:
            return None
        fitted = problem.fit(_block_config(rows, cols, reload, problem))
    limited = fitted.with_register_limit(tuning.COOPERATIVE_BYTES_IN_FLIGHT, tuning.MAX_SPILL_COOPERATIVE)
    return _fit_pipelined(fitted.config, limited) or limited


def _first_tile(problem: GpuProblem) -> tuple[int, int] | None:
    """The rows and columns of the smallest tile to try; None if a row would need too many programs."""
    if problem.layout == "inner":
        rows = min(next_power_of_2(problem.inner), tuning.INNER_ROWS)
        cols = max(tuning.MAX_BLOCK_COLS // rows, next_power_of_2(cdiv(problem.cols, tuning.INNER_BLOCKS_PER_ROW)))
        rows = limit_rows(rows, cols, tuning.MAX_INNER_ELEMENTS)
    else:
        rows, blocks = 1, tuning.PEELED_BLOCKS_PER_ROW if problem.peel else tuning.BLOCKS_PER_ROW
        cols = max(tuning.MIN_BLOCK_COLS, min(tuning.MAX_BLOCK_COLS, next_power_of_2(cdiv(problem.cols, blocks))))
    cols = max(cols, next_power_of_2(cdiv(problem.cols, tuning.ROW_PROGRAMS_PER_CORE * problem.device.cores)))
    return (rows, cols) if rows * cols <= problem.max_elements else None


def _first_inner_tile_with_reload(problem: GpuProblem) -> tuple[int, int] | None:
    """The rows and columns of the smallest tile of inner-dim rows with `reload`; None if a row needs too many programs.

    A tile reads full cache lines, or half of each line if two tensors are read. If its programs would exchange too many
    values, the tile has half as many rows and wider blocks.
    """
    tensors = 2 if problem.reads_several else 1
    rows_per_line = tuning.CACHE_LINE // problem.itemsize // tensors
    rows = min(next_power_of_2(problem.inner), rows_per_line)
    cols = tuning.RELOAD_TILE_ELEMENTS // tensors // rows
    while cdiv(problem.cols, cols) * rows > tuning.MAX_EXCHANGED_VALUES and rows * cols < problem.half_of_registers:
        rows, cols = max(rows // 2, min(rows, rows_per_line // 2)), 2 * cols
    return (rows, cols) if cdiv(problem.cols, cols) <= tuning.ROW_PROGRAMS_PER_CORE * problem.device.cores else None


def _block_config(rows: int, cols: int, reload: bool, problem: GpuProblem) -> KernelConfig:
    """The configuration for blocks of `cols` columns. With one block per row, its schedule is "whole_row"."""
    blocks = cdiv(problem.cols, cols)
    schedule: Schedule = "cooperative" if blocks > 1 else "whole_row"
    config = KernelConfig(schedule, rows, cols, programs_per_row=blocks)
    if reload:
        return problem.with_reload(config)
    # Unaligned elements each have an address, so a thread needs more registers for them.
    small = rows * cols <= tuning.MAX_BLOCK_COLS or not problem.aligned
    few = rows > 1 and problem.reads_several and small
    elements_per_thread = tuning.FEW_ELEMENTS_PER_THREAD if few else tuning.MANY_ELEMENTS_PER_THREAD
    return replace(config, num_warps=warps_for(rows * cols, elements_per_thread))


def _fit_pipelined(config: KernelConfig, limited: Fit) -> Fit | None:
    """Fits `config` as a software pipeline, which loads the next tiles while programs wait for each other.

    Returns None if `limited`, the fit without a pipeline, has enough bytes in flight or loads as much at the same time.
    """
    problem = limited.problem
    missing = tuning.COOPERATIVE_BYTES_IN_FLIGHT / limited.bytes_in_flight
    if missing <= 1 or config.rows > 1 or problem.peel:
        return None
    stages = min(problem.max_stages - 1, 1 + math.ceil(missing))
    pipelined = problem.fit(replace(config, num_stages=stages)).with_register_limit(tuning.BYTES_IN_FLIGHT)
    enough = max(2 * limited.occupancy, stages * cdiv(config.programs_per_row, problem.device.cores))
    return pipelined if pipelined.occupancy * stages >= enough else None
