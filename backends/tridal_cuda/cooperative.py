"""Configures the schedule `cooperative` on a GPU: several programs compute each row, one for each block of columns."""

from __future__ import annotations

import math
from dataclasses import replace

from tridal.devices.types import KernelConfig, Schedule, next_power_of_2
from tridal.errors import PlanError
from tridal_accelerator.candidates import first_with_few_spills
from tridal_accelerator.gpu import cdiv
from tridal_cuda import tuning
from tridal_cuda.gpu_problem import Fit, GpuProblem, limit_rows, warps_for
from tridal_cuda.inner_loop import fit_inner_loop
from tridal_cuda.resources import max_registers_for


def fit_cooperative(problem: GpuProblem) -> Fit | None:
    """Looks for a `Fit` in which all programs of a row are resident at the same time.

    The schedule of the result is `whole_row` if a whole row fits in one block, and `column_loop` if each program
    computes several blocks.
    """
    if not problem.can_exchange:
        return None
    try:
        return first_with_few_spills(fit(problem) for fit in _FITS)
    except PlanError:  # Triton 3.2 cannot start all programs at the same time
        return None


def _fit_one_shot(problem: GpuProblem) -> Fit | None:
    """Fits few rows: each program computes one block of one row, and then ends.

    Returns None if a row has one block or too many blocks, or if the programs cannot all be resident.
    """
    cols = next((block for row, block in tuning.ONE_SHOT_BLOCK_COLS if problem.cols <= row), None)
    if cols is None or problem.cols <= cols or problem.layout == "inner":
        return None
    config = KernelConfig("cooperative", 1, cols, programs_per_row=cdiv(problem.cols, cols), persistent=False)
    min_programs = cdiv(config.programs_per_row * problem.rows, problem.device.cores)  # per multiprocessor
    fits_in_l1 = min_programs * problem.bytes_per_tile(config) <= (problem.device.shared_memory or 0)
    # The cache lines of a strided row contain mostly other elements, so the row does not fit in the cache.
    config = replace(config, reload=problem.layout == "row" and problem.has_large_l1 and fits_in_l1)
    many_warps = _fit_resident(config, tuning.FEW_ELEMENTS_PER_THREAD, min_programs, problem)  # preferred
    if many_warps is not None and not many_warps.resources.spills:
        return many_warps
    # With few warps, `reload` helps 16-bit elements only: they need 4 bytes in a register, but 2 in the cache.
    config = replace(config, reload=config.reload and problem.itemsize == 2)
    few_warps = _fit_resident(config, tuning.MANY_ELEMENTS_PER_THREAD, min_programs, problem)
    return min(filter(None, (few_warps, many_warps)), key=lambda fitted: fitted.resources.spills, default=None)


def _fit_resident(config: KernelConfig, elements_per_thread: int, min_programs: int, problem: GpuProblem) -> Fit | None:
    """Looks for a `Fit` with an occupancy of at least `min_programs`, by a register limit if necessary."""
    registers = tuning.ONE_SHOT_RELOAD_REGISTERS if config.reload else None
    config = replace(config, num_warps=warps_for(config.cols, elements_per_thread), max_registers=registers)
    limit = max_registers_for(min_programs, config, problem.device)
    if limit <= tuning.FEW_ELEMENTS_PER_THREAD:  # too few registers for the elements of a thread
        return None
    fitted = problem.fit(config)
    if fitted.occupancy < min_programs and fitted.few_spills:
        fitted = problem.fit(replace(config, max_registers=limit))
    return fitted if fitted.occupancy >= min_programs and fitted.few_spills else None


def _fit_row_reload(problem: GpuProblem) -> Fit | None:
    """Fits many wide rows of one 16-bit tensor with `reload`. None stands for other problems.

    Rejects blocks with much padding. Rejects problems that read two tensors, because fewer blocks fit in the L1 cache.
    """
    min_cols = (4 if problem.peel else 1) * tuning.RELOAD_TILE_ELEMENTS
    if problem.layout != "row" or problem.reads_several or problem.cols < min_cols:
        return None
    too_small = problem.bytes_per_tensor <= tuning.MIN_WAVES * tuning.COOPERATIVE_BYTES_IN_FLIGHT * problem.device.cores
    if too_small or problem.itemsize > 2 or not problem.has_large_l1:
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
    """Looks for the narrowest blocks for which all programs of a row are resident."""
    reload = problem.layout == "inner" and problem.reloads_inner_rows
    tile = _smallest_inner_tile_with_reload(problem) if reload else _smallest_tile(problem)
    if tile is None:
        return None
    rows, cols = tile
    fitted = problem.fit(_block_config(rows, cols, reload, problem))
    while fitted.resident < fitted.config.programs_per_row:
        cols *= 2
        if rows * cols > problem.max_elements:
            return None
        fitted = problem.fit(_block_config(rows, cols, reload, problem))
    limited = fitted.with_few_spills(tuning.COOPERATIVE_BYTES_IN_FLIGHT, tuning.MAX_SPILL_COOPERATIVE)
    if not limited.usable:
        return None
    pipelined = _fit_pipelined(replace(limited.config, max_registers=None), limited)
    return first_with_few_spills((pipelined, limited))


def _smallest_tile(problem: GpuProblem) -> tuple[int, int] | None:
    """The rows and columns of the smallest tile to try, or None if even this tile is too large for one program."""
    if problem.layout == "inner":
        rows = next_power_of_2(problem.inner, tuning.INNER_ROWS)
        cols = max(tuning.MAX_BLOCK_COLS // rows, next_power_of_2(cdiv(problem.cols, tuning.INNER_BLOCKS_PER_ROW)))
        rows = limit_rows(rows, cols, tuning.MAX_INNER_ELEMENTS)
    else:
        rows, blocks = 1, tuning.PEELED_BLOCKS_PER_ROW if problem.peel else tuning.BLOCKS_PER_ROW
        cols = max(tuning.MIN_BLOCK_COLS, min(tuning.MAX_BLOCK_COLS, next_power_of_2(cdiv(problem.cols, blocks))))
    cols = max(cols, next_power_of_2(cdiv(problem.cols, tuning.ROW_PROGRAMS_PER_CORE * problem.device.cores)))
    return (rows, cols) if rows * cols <= problem.max_elements else None


def _smallest_inner_tile_with_reload(problem: GpuProblem) -> tuple[int, int] | None:
    """Returns the rows and columns of the smallest inner-dim tile with `reload`; None if a row needs too many programs.

    The rows of a tile fill a cache line, or half of it if two tensors are read. If its programs would exchange too many
    values, the tile has half as many rows and more columns.
    """
    tensors = 2 if problem.reads_several else 1
    rows_per_line = tuning.CACHE_LINE // problem.itemsize // tensors
    rows = next_power_of_2(problem.inner, rows_per_line)
    cols = tuning.RELOAD_TILE_ELEMENTS // tensors // rows
    while cdiv(problem.cols, cols) * rows > tuning.MAX_EXCHANGED_VALUES and rows * cols < problem.half_of_registers:
        rows, cols = max(rows // 2, min(rows, rows_per_line // 2)), 2 * cols
    return (rows, cols) if cdiv(problem.cols, cols) <= tuning.ROW_PROGRAMS_PER_CORE * problem.device.cores else None


def _block_config(rows: int, cols: int, reload: bool, problem: GpuProblem) -> KernelConfig:
    """Configures blocks of `cols` columns. If a row has one block, the schedule is "whole_row"."""
    blocks = cdiv(problem.cols, cols)
    schedule: Schedule = "cooperative" if blocks > 1 else "whole_row"
    config = KernelConfig(schedule, rows, cols, programs_per_row=blocks)
    if reload:
        return problem.with_reload(config)
    # Each unaligned element needs registers for its own address.
    small = rows * cols <= tuning.MAX_BLOCK_COLS or not problem.aligned
    few = rows > 1 and problem.reads_several and small
    elements_per_thread = tuning.FEW_ELEMENTS_PER_THREAD if few else tuning.MANY_ELEMENTS_PER_THREAD
    return replace(config, num_warps=warps_for(rows * cols, elements_per_thread))


def _fit_pipelined(config: KernelConfig, limited: Fit) -> Fit | None:
    """Adds a software pipeline, which loads the next tiles while programs wait for each other.

    `limited` is the `Fit` without a pipeline. Returns None if it has enough bytes in flight or a pipeline adds too few.
    """
    problem = limited.problem
    missing = tuning.COOPERATIVE_BYTES_IN_FLIGHT / limited.bytes_in_flight
    if missing <= 1 or config.rows > 1 or problem.peel:
        return None
    stages = min(problem.max_stages - 1, 1 + math.ceil(missing))
    pipelined = problem.fit(replace(config, num_stages=stages)).with_register_limit(tuning.BYTES_IN_FLIGHT)
    enough = max(2 * limited.occupancy, stages * cdiv(config.programs_per_row, problem.device.cores))
    return pipelined.without_idle_programs() if pipelined.occupancy * stages >= enough else None


_FITS = (_fit_one_shot, _fit_row_reload, fit_inner_loop, _fit_blocks)
