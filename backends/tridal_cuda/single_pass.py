"""Configures kernels whose programs exchange nothing on a GPU, because of what they compute.

A kernel without statistics computes each element on its own. A kernel that writes only numbers per row reads each
element once, so a loop over columns reads no element twice.
"""

from __future__ import annotations

from dataclasses import replace

from tridal.devices.types import MAX_TILE, KernelConfig, Schedule, next_power_of_2
from tridal_accelerator.gpu import cdiv
from tridal_cuda import tuning
from tridal_cuda.gpu_problem import Fit, GpuProblem, warps_for


def fit_single_pass(problem: GpuProblem) -> Fit | None:
    """Fits such a kernel. None stands for other kernels, and for narrow peeled rows without statistics."""
    if problem.column_writes:
        return None
    if problem.layout == "inner":
        return _fit_few_inner_rows(problem)
    if not problem.statistics:
        return _fit_elements(problem)
    return None if problem.writes else _fit_numbers(problem)


def _fit_few_inner_rows(problem: GpuProblem) -> Fit | None:
    """Fits few inner-dim rows whose numbers need one pass. None stands for other problems.

    A tile has the rows of one sector of a cache line, so that there are as many programs as possible.
    """
    few = problem.tiles(tuning.INNER_ROWS) < tuning.MIN_WAVES * problem.device.cores
    if problem.writes or problem.passes > 1 or not few or problem.cols <= tuning.INNER_ROWS:
        return None
    rows = next_power_of_2(problem.inner, tuning.SECTOR // problem.itemsize)
    cols = min(next_power_of_2(problem.cols), tuning.NARROW_TILE_ELEMENTS)
    schedule: Schedule = "whole_row" if cols >= problem.cols else "column_loop"
    warps = warps_for(rows * cols, tuning.FEW_ELEMENTS_PER_THREAD)
    return problem.fit(KernelConfig(schedule, rows, cols, warps)).with_few_spills()


def _fit_elements(problem: GpuProblem) -> Fit | None:
    """Gives each block of a row, or each tile of several narrow rows, a program.

    Returns None for more blocks than a row may have, and for narrow peeled rows.
    """
    cols = min(problem.tile_cols, tuning.SINGLE_PASS_ELEMENTS)
    blocks, rows = cdiv(problem.cols, cols), next_power_of_2(problem.inner, tuning.SINGLE_PASS_ELEMENTS // cols)
    if blocks > MAX_TILE or (problem.peel and rows > 1):
        return None
    schedule: Schedule = "cooperative" if blocks > 1 else "whole_row"
    config = KernelConfig(schedule, rows, cols, 1, 1, blocks, persistent=False)
    if rows > 1 and problem.itemsize == 2:
        fitted = problem.fit(replace(config, num_warps=warps_for(rows * cols, tuning.FEW_ELEMENTS_PER_THREAD)))
        if fitted.occupancy * fitted.config.num_warps >= tuning.NARROW_WARPS:
            return fitted.with_few_spills()
    warps = warps_for(rows * cols, tuning.SINGLE_PASS_ELEMENTS_PER_THREAD)
    return problem.fit(replace(config, num_warps=warps)).with_few_spills()


def _fit_numbers(problem: GpuProblem) -> Fit | None:
    """Fits a kernel that writes only numbers per row, unless rows have a medium width or are few."""
    rows = tuning.NUMBERS_TILE_BYTES // (problem.tile_cols * problem.bytes_read)
    if rows > 1 and not problem.peel and problem.rows >= tuning.MIN_WAVES * problem.device.cores * rows:
        rows = next_power_of_2(problem.inner, 1 << rows.bit_length() - 1)
        return problem.fit(KernelConfig("whole_row", rows, problem.tile_cols, 1)).with_few_spills()
    # With fewer rows, a program for each of them leaves multiprocessors idle, and `cooperative` is better.
    rows_per_core = problem.rows / problem.device.cores
    if problem.cols < tuning.MIN_LOOP_COLS or rows_per_core < tuning.MIN_LOOPS_PER_CORE:
        return None
    # Each thread has its own statistics, so that threads exchange nothing in the loop. A program per row balances the
    # work in the last wave better than programs that loop over rows, unless combining the lanes takes too many slots.
    short = problem.few_slots and problem.cols < tuning.LONG_LOOP_COLS
    cols = tuning.LOOP_COLS // (2 if short else 1)
    warps = warps_for(cols, tuning.FEW_ELEMENTS_PER_THREAD)
    lanes = warps * (problem.device.warp_size or 32)
    return problem.fit(KernelConfig("column_loop", 1, cols, warps, lanes=lanes, persistent=short))
