"""Configures kernels that sum a term over rows on a GPU: programs keep the sums of their columns in registers."""

from __future__ import annotations

from collections.abc import Iterator

from tridal.devices.types import KernelConfig, next_power_of_2
from tridal_cuda import tuning
from tridal_cuda.gpu_problem import Fit, GpuProblem, cdiv, warps_for


def fit_column_sums(problem: GpuProblem) -> Fit | None:
    """Returns a `Fit` for a kernel with `column_writes`; None for other kernels, layouts and dtypes.

    Programs loop over tiles with a software pipeline, because registers that hold sums cannot hold further tiles. A row
    that is wider than a tile has several programs: each keeps the sums of its own block of columns.
    """
    if not problem.column_writes or problem.layout == "inner" or problem.accumulator == 8:
        return None
    for config in _configs(problem):
        fitted = problem.fit(config).with_few_spills(tuning.BYTES_IN_FLIGHT if config.reload else 0)
        if fitted.usable:
            return fitted
    return None


def _configs(problem: GpuProblem) -> Iterator[KernelConfig]:
    cols = problem.tile_cols
    if cols <= tuning.SUMS_WHOLE_ROW_COLS:
        rows = 1 if problem.peel else max(1, min(tuning.SUMS_ROWS, tuning.SUMS_TILE_ELEMENTS // cols))
        rows = min(next_power_of_2(problem.inner), rows)
        per_thread = tuning.FEW_ELEMENTS_PER_THREAD if problem.peel else tuning.SUMS_ELEMENTS_PER_THREAD
        warps = warps_for(rows * cols, per_thread)
        yield KernelConfig("whole_row", rows, cols, warps, tuning.SUMS_STAGES)
        return
    # Without a pipeline, `reload` leaves registers for the sums of more columns.
    wide = problem.itemsize == 2 and problem.has_large_l1 and not problem.peel
    if wide and cols == 2 * tuning.SUMS_WHOLE_ROW_COLS:
        yield KernelConfig("whole_row", 1, cols, warps_for(cols, tuning.FEW_ELEMENTS_PER_THREAD), reload=True)
    reload = wide and problem.cols >= tuning.SUMS_RELOAD_COLS
    cols = tuning.SUMS_BLOCK_COLS * (2 if reload else 1)
    warps, blocks = warps_for(cols, tuning.FEW_ELEMENTS_PER_THREAD), cdiv(problem.cols, cols)
    stages = 1 if reload else tuning.SUMS_STAGES
    yield KernelConfig("cooperative", 1, cols, warps, stages, blocks, reload=reload)
