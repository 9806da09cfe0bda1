"""Configures rows with two tiles on a GPU: rows that fill too little of one tile.

Padding takes registers and issue slots like elements. So many registers limit the programs, and thus the bytes in
flight, of kernels that keep sums over rows or several numbers per column in registers.
"""

from __future__ import annotations

from tridal.devices.types import KernelConfig, next_power_of_2
from tridal_cuda import tuning
from tridal_cuda.gpu_problem import Fit, GpuProblem, warps_for


def fit_two_tiles(problem: GpuProblem) -> Fit | None:
    """Fits wide aligned 16-bit rows of such a kernel. None stands for other problems."""
    if problem.layout != "row" or not problem.aligned or problem.itemsize > 2 or problem.whole_rows:
        return None
    cols, sums = problem.tile_cols, bool(problem.column_writes)
    one_tensor = not sums and not problem.reads_several
    most = tuning.SUMS_WHOLE_ROW_COLS if sums or one_tensor else tuning.TWO_TILES_COLS
    if not tuning.NARROW_TILE_ELEMENTS < cols <= most or not problem.padded:
        return None
    if not (sums or _needs_registers(problem)):
        return None
    first, stages = cols // 2, tuning.SUMS_STAGES if sums else 1
    rest = next_power_of_2(problem.cols - first)
    reload = one_tensor and problem.has_large_l1 and first >= tuning.TWO_TILES_RELOAD_COLS
    warps = warps_for(first, (2 if reload else 1) * tuning.TWO_TILES_ELEMENTS_PER_THREAD)
    config = KernelConfig("whole_row", 1, first, warps, stages, persistent=sums, reload=reload, rest_cols=rest)
    fitted = problem.fit(config).with_few_spills()
    return fitted if fitted.usable else None


def _needs_registers(problem: GpuProblem) -> bool:
    """Whether a kernel without sums has many rows, and several numbers per column that no program loads only once.

    With more issue slots per byte, rows that have the same numbers are loaded again by more threads instead.
    """
    several = problem.statistics and problem.writes and len(problem.column_reads) > 1
    many_rows = problem.rows >= tuning.MIN_WAVES * problem.device.cores
    return bool(several and many_rows and (problem.few_slots or problem.per_block))
