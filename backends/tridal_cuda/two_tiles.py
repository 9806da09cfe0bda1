"""Configures rows with two tiles on a GPU: rows that fill too little of one tile, or need too many registers in one.

Padding takes registers and issue slots like elements. So many registers limit the programs, and thus the bytes in
flight, of kernels that keep sums over rows or several numbers per column in registers. column_sums.py configures the
two tiles of unaligned rows that are summed.
"""

from __future__ import annotations

from tridal.devices.types import KernelConfig
from tridal_cuda import tuning
from tridal_cuda.gpu_problem import Fit, GpuProblem, warps_for


def fit_two_tiles(problem: GpuProblem) -> Fit | None:
    """Fits such rows. None stands for other problems."""
    if problem.layout != "row" or problem.whole_rows:
        return None
    return problem.fit_if_usable(_aligned(problem) if problem.aligned else _unaligned(problem))


def _aligned(problem: GpuProblem) -> KernelConfig | None:
    """Configures rows that fill too little of one tile, or need too many registers in it."""
    if not _needs_registers(problem):
        return None
    cols, (first, rest), sums = problem.tile_cols, problem.first_and_rest, bool(problem.column_writes)
    if not tuning.NARROW_TILE_ELEMENTS < cols <= _most_cols(problem) or problem.padding < _least_padding(problem):
        return None
    one_tensor, reload = not sums and not problem.reads_several, _reloads(problem, first, rest)
    if reload and problem.per_block and problem.itemsize == 2:
        rest = max(rest, first // tuning.TWO_TILES_PARTS)
    many = _sums_have_few_threads(problem, first, rest) if sums else reload or (one_tensor and not problem.per_block)
    per_thread = tuning.FEW_ELEMENTS_PER_THREAD // (1 if many and problem.itemsize == 2 else 2)
    warps, stages = warps_for(first, per_thread), tuning.SUMS_STAGES if sums else 1
    return KernelConfig("whole_row", 1, first, warps, stages, persistent=sums, reload=reload, rest_cols=rest)


def _reloads(problem: GpuProblem, first: int, rest: int) -> bool:
    """Whether programs of aligned rows load the first tile again from the L1 cache."""
    if problem.column_writes or not problem.has_large_l1:
        return False
    if problem.loads_late:
        return problem.itemsize == 2 and rest * tuning.TWO_TILES_PARTS == first
    return not problem.reads_several and first * problem.itemsize >= tuning.TWO_TILES_RELOAD_BYTES


def _unaligned(problem: GpuProblem) -> KernelConfig | None:
    """Configures unaligned rows, if the rest is at most half of the first tile.

    In peeled rows, elements are loaded in vectors, and numbers per column one by one. In two tiles, numbers per column
    are loaded in vectors, and elements one by one.
    """
    first, rest = problem.first_and_rest
    if not _has_column_reads(problem) or problem.column_writes or rest > first // 2:
        return None
    if not tuning.NARROW_TILE_ELEMENTS <= first <= tuning.WIDE_ROW_COLS or not _loads_columns_longest(problem):
        return None
    many_threads = problem.loads_late or (problem.itemsize > 2 and not problem.reads_several_columns)
    per_thread = tuning.FEW_ELEMENTS_PER_THREAD // (2 if many_threads else 1)
    warps, reload = warps_for(first, per_thread), problem.per_block and problem.has_large_l1
    return KernelConfig("whole_row", 1, first, warps, persistent=False, reload=reload, rest_cols=rest)


def _loads_columns_longest(problem: GpuProblem) -> bool:
    """Whether the loads of numbers per column limit peeled rows: they are several, or much of the tile is padding."""
    if problem.itemsize == 2 and problem.reads_several_columns and not problem.reads_several:
        return problem.few_slots or problem.per_block
    least = tuning.TWO_TILES_UNALIGNED_PADDING if problem.itemsize == 2 else tuning.MUCH_PADDING
    return not problem.per_block and not problem.added and problem.padding >= least


def _needs_registers(problem: GpuProblem) -> bool:
    """Whether a kernel needs many registers: it sums 16-bit rows, or it has many rows and numbers per column, and loads
    a tensor late or has several of these numbers.

    With more issue slots per byte, 16-bit rows that have the same numbers are loaded again by more threads instead.
    """
    if problem.column_writes:
        return problem.itemsize == 2
    if not _has_column_reads(problem):
        return False
    several = problem.reads_several_columns and (problem.few_slots or problem.per_block)
    return problem.loads_late or several or _reads_several_of_both(problem)


def _has_column_reads(problem: GpuProblem) -> bool:
    """Whether a kernel computes many rows with statistics and numbers per column, in at most 32 bits."""
    applies = problem.column_reads and problem.statistics and problem.writes and not problem.few_rows
    return bool(applies) and problem.itemsize <= 4


def _reads_several_of_both(problem: GpuProblem) -> bool:
    """Whether a kernel of 32-bit rows reads several tensors and several numbers per column."""
    return problem.itemsize > 2 and problem.reads_several and problem.reads_several_columns


def _most_cols(problem: GpuProblem) -> int:
    """Returns the largest tile that is divided."""
    return tuning.TWO_TILES_SEVERAL_COLS if _reads_several_of_both(problem) else tuning.SUMS_WHOLE_ROW_COLS


def _least_padding(problem: GpuProblem) -> float:
    """Returns the smallest part of one tile that is padding, for which two tiles are faster.

    Share of copy in one tile of 8,192 columns (in two), H200: gradient of gated RMSNorm, bf16 0.82 (0.92).
    """
    if problem.column_writes or problem.reads_several or problem.per_block:
        return 0 if problem.keeps_gate and problem.tile_cols == tuning.SUMS_WHOLE_ROW_COLS else tuning.MUCH_PADDING
    return tuning.LITTLE_PADDING


def _sums_have_few_threads(problem: GpuProblem, first: int, rest: int) -> bool:
    """Whether a thread of a kernel with sums has `FEW_ELEMENTS_PER_THREAD`, so that more programs are resident."""
    little_else = len((*problem.reads, *problem.added)) == 2 and len(problem.column_writes) > 1
    most = first // (tuning.TWO_TILES_PARTS // 2 if little_else else tuning.TWO_TILES_PARTS)
    return first >= tuning.TWO_TILES_FEW_THREADS_COLS and rest <= most and not problem.keeps_gate
