"""Configures kernels that sum a term over rows on a GPU: programs keep the sums of their columns in registers."""

from __future__ import annotations

from collections.abc import Iterator

from tridal.devices.types import KernelConfig, next_power_of_2
from tridal_accelerator.gpu import cdiv
from tridal_cuda import tuning
from tridal_cuda.gpu_problem import Fit, GpuProblem, warps_for


def fit_column_sums(problem: GpuProblem) -> Fit | None:
    """Fits a kernel with `column_writes`. None stands for other kernels, layouts and dtypes.

    Programs loop over tiles, because each keeps sums in registers: those of its own block of columns if a row is wider
    than a tile. Because registers that hold sums cannot hold further tiles, loads are pipelined, or tiles are loaded
    again.
    """
    if not problem.column_writes or problem.layout == "inner" or problem.accumulator == 8:
        return None
    configs = (c for c in _configs(problem) if problem.can_exchange or c.schedule != "cooperative")
    fits = (problem.fit(config).with_few_spills() for config in configs)
    return next((fitted for fitted in fits if fitted.usable), None)


def _configs(problem: GpuProblem) -> Iterator[KernelConfig]:
    cols = problem.tile_cols
    if not problem.aligned and (problem.itemsize == 2 or cols > tuning.SUMS_UNALIGNED_NARROW_COLS):
        if cols <= tuning.SUMS_UNALIGNED_COLS:
            yield KernelConfig("whole_row", 1, cols, warps_for(cols, tuning.FEW_ELEMENTS_PER_THREAD))
        else:
            wide = problem.cols > tuning.SUMS_WIDE_COLS
            block = tuning.SUMS_MIN_BLOCK_COLS if wide else tuning.SUMS_UNALIGNED_BLOCK_COLS
            warps = warps_for(block, tuning.SUMS_ELEMENTS_PER_THREAD)
            yield KernelConfig("cooperative", 1, block, warps, programs_per_row=cdiv(problem.cols, block))
        return
    if cols <= tuning.SUMS_WHOLE_ROW_COLS:
        narrow = cols <= tuning.SUMS_NARROW_COLS and not (problem.few_slots and len(problem.column_writes) > 1)
        most = min(tuning.SUMS_NARROW_ROWS if narrow else tuning.SUMS_ROWS, tuning.SUMS_TILE_ELEMENTS // cols)
        rows = next_power_of_2(problem.inner, max(1, most))
        padded = cols <= tuning.SUMS_PADDED_COLS and problem.padding >= tuning.MUCH_PADDING
        wide = cols >= tuning.SUMS_WIDE_TILE_COLS and problem.itemsize == 2
        many = problem.itemsize == 2 if narrow else wide or padded
        per_thread = tuning.FEW_ELEMENTS_PER_THREAD if many else tuning.SUMS_ELEMENTS_PER_THREAD
        stages = tuning.SUMS_STAGES - 1 if narrow else tuning.SUMS_STAGES
        yield KernelConfig("whole_row", rows, cols, warps_for(rows * cols, per_thread), stages)
        return
    few_sums = problem.itemsize == 2 and len(problem.column_writes) == 1
    if problem.has_large_l1 and few_sums and cols == 2 * tuning.SUMS_WHOLE_ROW_COLS:
        yield KernelConfig("whole_row", 1, cols, warps_for(cols, tuning.FEW_ELEMENTS_PER_THREAD), reload=True)
    cols = tuning.SUMS_MIN_BLOCK_COLS if problem.cols <= tuning.SUMS_WIDE_COLS else tuning.SUMS_MAX_BLOCK_COLS
    warps, blocks = warps_for(cols, tuning.FEW_ELEMENTS_PER_THREAD), cdiv(problem.cols, cols)
    yield KernelConfig("cooperative", 1, cols, warps, tuning.SUMS_STAGES, blocks)
