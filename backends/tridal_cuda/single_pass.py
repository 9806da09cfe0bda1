"""Configures kernels whose programs exchange nothing on a GPU, because of what they compute.

A kernel without statistics computes each element on its own. A kernel that writes only numbers per row reads each
element once, so a loop over columns reads no element twice.
"""

from __future__ import annotations

from tridal.devices.types import KernelConfig, Schedule
from tridal_cuda import tuning
from tridal_cuda.gpu_problem import Fit, GpuProblem, cdiv, warps_for


def fit_single_pass(problem: GpuProblem) -> Fit | None:
    """Returns a `Fit` for wide rows of such a kernel; None for other problems."""
    if problem.layout == "inner" or problem.column_writes or problem.cols <= tuning.NARROW_TILE_ELEMENTS:
        return None
    if not problem.statistics:
        cols = min(problem.tile_cols, tuning.SINGLE_PASS_COLS)
        warps, blocks = warps_for(cols, tuning.FEW_ELEMENTS_PER_THREAD), cdiv(problem.cols, cols)
        schedule: Schedule = "cooperative" if blocks > 1 else "whole_row"
        return problem.fit(KernelConfig(schedule, 1, cols, warps, 1, blocks, persistent=False)).with_few_spills()
    # With few rows, a program for each of them leaves multiprocessors idle, and `cooperative` is better.
    few_rows = problem.rows < tuning.MIN_LOOPS_PER_CORE * problem.device.cores
    if problem.writes or problem.cols < tuning.MIN_LOOP_STEPS * tuning.LOOP_COLS or few_rows:
        return None
    warps = warps_for(tuning.LOOP_COLS, tuning.FEW_ELEMENTS_PER_THREAD)
    return problem.fit(KernelConfig("column_loop", 1, tuning.LOOP_COLS, warps))
