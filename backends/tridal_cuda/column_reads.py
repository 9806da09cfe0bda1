"""Configures kernels that read numbers per column on a GPU, for example the weight of a norm.

These numbers cost as much as the elements where rows are wide, and where rows are unaligned: then they are not aligned
with the elements. A program that loops over tiles with the same columns loads them once.
"""

from __future__ import annotations

from tridal.devices.types import KernelConfig, next_power_of_2
from tridal_cuda import tuning
from tridal_cuda.gpu_problem import Fit, GpuProblem, cdiv, warps_for


def fit_column_reads(problem: GpuProblem) -> Fit | None:
    """Returns a `Fit` for narrow, wide and unaligned rows of such a kernel; None for other problems."""
    applies = problem.column_reads and problem.statistics and problem.writes and not problem.column_writes
    if not applies or problem.layout != "row" or problem.accumulator == 8:
        return None
    if problem.rows < tuning.MIN_WAVES * problem.device.cores:
        return None
    config = _unaligned(problem) if problem.peel else _aligned(problem)
    if config is None:
        return None
    fitted = problem.fit(config).with_few_spills()
    return fitted if fitted.usable else None


def _unaligned(problem: GpuProblem) -> KernelConfig | None:
    """Returns the configuration for peeled rows of one tile. All rows of a program that loops have equal heads."""
    cols = problem.tile_cols
    if problem.outer > 1 or cols > tuning.WIDE_ROW_COLS:
        return None
    if _loads_little(problem) and cols > tuning.NARROW_TILE_ELEMENTS:
        warps = warps_for(cols, tuning.FEW_ELEMENTS_PER_THREAD)
        return KernelConfig("whole_row", 1, cols, warps, persistent=False, reload=problem.has_large_l1)
    warps = warps_for(cols, tuning.MANY_ELEMENTS_PER_THREAD)
    return KernelConfig("whole_row", 1, cols, warps, tuning.COLUMN_READS_STAGES)


def _aligned(problem: GpuProblem) -> KernelConfig | None:
    """Returns the configuration for rows of up to `COLUMN_READS_NARROW_COLS` or more than `WIDE_ROW_COLS` columns."""
    cols, row_bytes = problem.tile_cols, problem.tile_cols * problem.itemsize
    if cols <= tuning.COLUMN_READS_NARROW_COLS and problem.itemsize == 2 and not _loads_little(problem):
        rows = min(2 * tuning.NARROW_TILE_ELEMENTS // cols, next_power_of_2(problem.inner))
        warps = warps_for(rows * cols, tuning.FEW_ELEMENTS_PER_THREAD)
        return KernelConfig("whole_row", rows, cols, warps, persistent=False)
    if cols <= tuning.WIDE_ROW_COLS or not problem.has_large_l1:
        return None
    if _loads_little(problem):
        # One program can compute a wide row: it reads the row twice, the second time from the L1 cache.
        if row_bytes > (2 if problem.itemsize == 2 else 1) * tuning.MAX_RELOAD_ROW_BYTES:
            return None
        warps = max(8, warps_for(cols, tuning.RELOAD_ELEMENTS_PER_THREAD))
        return KernelConfig("whole_row", 1, cols, warps, persistent=False, reload=True)
    if not problem.reads_several and problem.itemsize == 2 and row_bytes <= tuning.MAX_RELOAD_ROW_BYTES:
        warps = warps_for(cols, tuning.MANY_ELEMENTS_PER_THREAD)
        if row_bytes <= tuning.MAX_RELOAD_ROW_BYTES // 2:
            return KernelConfig("whole_row", 1, cols, warps, tuning.COLUMN_READS_STAGES)
        return KernelConfig("whole_row", 1, cols, warps, persistent=False)
    block = tuning.COLUMN_READS_BLOCK_COLS
    warps, blocks = warps_for(block, tuning.MANY_ELEMENTS_PER_THREAD), cdiv(problem.cols, block)
    reload = problem.itemsize == 2 and not problem.reads_several and problem.cols >= tuning.COLUMN_READS_RELOAD_COLS
    stages = 1 if reload else tuning.COLUMN_READS_STAGES
    return KernelConfig("cooperative", 1, block, warps, stages, blocks, reload=reload)


def _loads_little(problem: GpuProblem) -> bool:
    """Whether the kernel reads one tensor, and one number per column."""
    return not problem.reads_several and len(problem.column_reads) == 1
