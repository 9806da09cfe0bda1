"""Configures kernels that sum a term over rows on a GPU: programs keep the sums of their columns in registers."""

from __future__ import annotations

from tridal.devices.types import KernelConfig
from tridal_cuda import tuning
from tridal_cuda.gpu_problem import Fit, GpuProblem, cdiv, next_power_of_2, warps_for


def fit_column_sums(problem: GpuProblem) -> Fit | None:
    """Returns a `Fit` for a kernel with `column_writes`; None for other kernels, layouts and dtypes.

    Programs loop over tiles with a software pipeline, because registers that hold sums cannot hold further tiles. A row
    that is wider than a tile has several programs: each keeps the sums of its own block of columns.
    """
    if not problem.column_writes or problem.layout == "inner" or problem.accumulator == 8:
        return None
    if problem.cols <= tuning.SUMS_WHOLE_ROW_COLS:
        cols = next_power_of_2(problem.cols)
        rows = min(next_power_of_2(problem.inner), max(1, tuning.NARROW_TILE_ELEMENTS // cols))
        warps = warps_for(rows * cols, tuning.FEW_ELEMENTS_PER_THREAD)
        stages = tuning.SUMS_STAGES if rows * cols > tuning.NARROW_TILE_ELEMENTS else 1
        config = KernelConfig("whole_row", rows, cols, warps, stages)
    else:
        cols = tuning.SUMS_BLOCK_COLS
        warps, blocks = warps_for(cols, tuning.FEW_ELEMENTS_PER_THREAD), cdiv(problem.cols, cols)
        config = KernelConfig("cooperative", 1, cols, warps, tuning.SUMS_STAGES, blocks)
    fitted = problem.fit(config).with_few_spills()
    return fitted if fitted.few_spills and fitted.resident >= fitted.config.programs_per_row else None
