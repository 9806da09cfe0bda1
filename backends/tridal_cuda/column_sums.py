"""Configures kernels that sum a term over rows on a GPU: programs keep the sums of their columns in registers."""

from __future__ import annotations

from collections.abc import Iterator

from tridal.devices.types import KernelConfig, next_power_of_2
from tridal_accelerator.gpu import cdiv
from tridal_cuda import tuning
from tridal_cuda.gpu_problem import Fit, GpuProblem, warps_for


def fit_column_sums(problem: GpuProblem) -> Fit | None:
    """Returns a `Fit` for a kernel with `column_writes`; None for other kernels, layouts and dtypes.

    Programs loop over tiles, because each keeps sums in registers: those of its own block of columns if a row is wider
    than a tile. Registers that hold sums cannot hold further tiles. So loads have a software pipeline, or tiles are
    loaded again.
    """
    if not problem.column_writes or problem.layout == "inner" or problem.accumulator == 8:
        return None
    configs = (c for c in _configs(problem) if problem.can_exchange or c.schedule != "cooperative")
    for config in configs:
        fitted = problem.fit(config).with_few_spills(tuning.SUMS_OVERLAP_BYTES_IN_FLIGHT if config.overlap else 0)
        too_many = config.overlap and fitted.config.programs_per_row > tuning.MAX_OVERLAP_PROGRAMS
        if fitted.usable and not too_many:
            return fitted
    return None


def _configs(problem: GpuProblem) -> Iterator[KernelConfig]:
    cols = problem.tile_cols
    if cols <= tuning.SUMS_WHOLE_ROW_COLS:
        narrow = cols <= tuning.SUMS_NARROW_COLS and not (problem.few_slots and len(problem.column_writes) > 1)
        most = min(tuning.SUMS_NARROW_ROWS if narrow else tuning.SUMS_ROWS, tuning.SUMS_TILE_ELEMENTS // cols)
        rows = 1 if problem.peel else next_power_of_2(problem.inner, max(1, most))
        per_thread = _elements_per_thread(problem) if narrow else tuning.SUMS_ELEMENTS_PER_THREAD
        stages = tuning.SUMS_STAGES - 1 if narrow else tuning.SUMS_STAGES
        yield KernelConfig("whole_row", rows, cols, warps_for(rows * cols, per_thread), stages)
        return
    few_sums = problem.itemsize == 2 and len(problem.column_writes) == 1
    if problem.has_large_l1 and few_sums and cols == 2 * tuning.SUMS_WHOLE_ROW_COLS:
        yield KernelConfig("whole_row", 1, cols, warps_for(cols, tuning.FEW_ELEMENTS_PER_THREAD), reload=True)
    if problem.has_large_l1 and problem.aligned and _overlaps(problem):
        yield _overlapped(problem)
    cols = min(tuning.SUMS_MAX_BLOCK_COLS, _block_cols(problem))
    warps, blocks = warps_for(cols, tuning.FEW_ELEMENTS_PER_THREAD), cdiv(problem.cols, cols)
    yield KernelConfig("cooperative", 1, cols, warps, tuning.SUMS_STAGES, blocks)


def _overlaps(problem: GpuProblem) -> bool:
    """Whether `overlap` hides more of the exchange than a software pipeline, whose blocks are in shared memory.

    A pipeline is better for 32-bit rows, unless they have so many blocks that statistics are exchanged in two steps,
    and for 16-bit rows with two sums per column, unless they are very wide: the sums leave few registers. Rows can be
    too wide for `MAX_OVERLAP_PROGRAMS`.
    """
    if problem.cols > tuning.MAX_OVERLAP_PROGRAMS * tuning.SUMS_MAX_OVERLAP_COLS:
        return False
    if problem.itemsize > 2:
        return problem.cols > tuning.MAX_OVERLAP_PROGRAMS * tuning.SUMS_MAX_BLOCK_COLS
    return len(problem.column_writes) == 1 or problem.cols >= tuning.SUMS_OVERLAP_COLS


def _overlapped(problem: GpuProblem) -> KernelConfig:
    """Returns the configuration with `overlap`."""
    cols = _block_cols(problem)
    warps = warps_for(cols, _elements_per_thread(problem))
    blocks = cdiv(problem.cols, cols)
    return KernelConfig("cooperative", 1, cols, warps, programs_per_row=blocks, reload=True, overlap=True)


def _block_cols(problem: GpuProblem) -> int:
    """Returns the columns of the smallest blocks that give a row few enough programs."""
    return max(tuning.SUMS_MIN_BLOCK_COLS, next_power_of_2(cdiv(problem.cols, tuning.MAX_OVERLAP_PROGRAMS)))


def _elements_per_thread(problem: GpuProblem) -> int:
    return tuning.SUMS_ELEMENTS_PER_THREAD if problem.itemsize > 2 else tuning.FEW_ELEMENTS_PER_THREAD
