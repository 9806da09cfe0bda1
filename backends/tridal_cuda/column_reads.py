"""Configures kernels that read numbers per column on a GPU, for example the weight of a norm.

These numbers cost as much as the elements where rows are wide, and where rows are unaligned: then they are not aligned
with the elements. A program that loops over aligned tiles loads them once.
"""

from __future__ import annotations

from dataclasses import replace

from tridal.devices.types import KernelConfig, next_power_of_2
from tridal_accelerator.gpu import cdiv
from tridal_cuda import tuning
from tridal_cuda.gpu_problem import Fit, GpuProblem, warps_for
from tridal_cuda.resources import max_registers_for


def fit_column_reads(problem: GpuProblem) -> Fit | None:
    """Fits narrow, wide and unaligned rows of such a kernel. None stands for other problems."""
    applies = problem.column_reads and problem.statistics and problem.writes and not problem.column_writes
    if not applies or problem.layout != "row" or problem.few_rows:
        return None
    config = _several_column_reads(problem)
    if config is None and problem.can_exchange:
        config = _unaligned(problem) if problem.peel else _aligned(problem)
    return problem.fit_if_usable(config)


def _several_column_reads(problem: GpuProblem) -> KernelConfig | None:
    """Configures aligned rows of one tensor in tiles of twice `NARROW_TILE_ELEMENTS`, if loads of numbers limit the
    kernel: 16-bit rows with few issue slots, or 32-bit rows of blocks with numbers of their own.

    A register limit for more programs makes the loads of the numbers wait. Share of copy with it (without), bf16, H200:
    LayerNorm 2048 columns 0.91 (0.98). If blocks of rows have numbers of their own, `reload` helps as well: modulated
    LayerNorm 2048 0.79 (0.90), float32 0.86 (0.95), modulated RMSNorm 2048 0.83 (0.95), float32 0.87 (0.97).
    """
    cols = 2 * tuning.NARROW_TILE_ELEMENTS
    if problem.tile_cols != cols or problem.peel or problem.reads_several or not problem.reads_several_columns:
        return None
    reload = problem.per_block and problem.has_large_l1
    if not (problem.few_slots or (reload and problem.itemsize == 4)):
        return None
    return KernelConfig("whole_row", 1, cols, _warps_of_64_bytes(problem), persistent=False, reload=reload)


def _warps_of_64_bytes(problem: GpuProblem) -> int:
    """Returns the warps of a tile whose threads have 64 bytes of each tensor."""
    return warps_for(problem.tile_cols * problem.itemsize, 2 * tuning.FEW_ELEMENTS_PER_THREAD)


def _unaligned(problem: GpuProblem) -> KernelConfig | None:
    """Configures peeled rows of one tile, but not narrow rows, of which a tile has several."""
    cols = problem.tile_cols
    if not tuning.NARROW_TILE_ELEMENTS * (2 if problem.few_slots else 1) <= cols <= tuning.WIDE_ROW_COLS:
        return None
    reload, warps = problem.few_slots and problem.has_large_l1, warps_for(cols, tuning.FEW_ELEMENTS_PER_THREAD)
    return KernelConfig("whole_row", 1, cols, warps, persistent=False, reload=reload)


def _aligned(problem: GpuProblem) -> KernelConfig | None:
    """Configures rows of up to `COLUMN_READS_NARROW_COLS` columns, or with wide tiles."""
    cols, row_bytes = problem.tile_cols, problem.tile_cols * problem.bytes_read
    if cols <= tuning.COLUMN_READS_NARROW_COLS and problem.itemsize == 2 and not _loads_little(problem):
        rows = next_power_of_2(problem.inner, 2 * tuning.NARROW_TILE_ELEMENTS // cols)
        warps = warps_for(rows * cols, tuning.FEW_ELEMENTS_PER_THREAD)
        return KernelConfig("whole_row", rows, cols, warps, persistent=False)
    more_threads = problem.itemsize == 2 and not _needs_slots(problem)
    narrow = cols <= tuning.NARROW_TILE_ELEMENTS if more_threads else row_bytes < tuning.NARROW_RELOAD_BYTES
    if narrow or not problem.has_large_l1:
        return None
    # Kernels that load a tensor after the statistics have no register limit, and 64 bytes of a tensor per thread. Share
    # of copy of gated RMSNorm in bf16 without `reload` (with it), H200: 3584 columns 0.99 (1.03), 7168 0.90 (1.00),
    # 8192 0.95 (1.02). In float32, both are 1.02 to 1.04, and 0.86 with twice as many bytes per thread.
    if problem.loads_late and cols <= tuning.WIDE_ROW_COLS:
        reload, warps = problem.itemsize == 2, _warps_of_64_bytes(problem)
        return KernelConfig("whole_row", 1, cols, warps, persistent=False, reload=reload)
    # One program can compute a wide row: it loads the row again from the L1 cache.
    one_16_bit = problem.itemsize == 2 and not problem.reads_several
    if row_bytes <= tuning.COLUMN_READS_BYTES_IN_FLIGHT // (1 if one_16_bit or _loads_little(problem) else 2):
        return _reload(problem, KernelConfig("whole_row", 1, cols, persistent=False))
    if one_16_bit:
        block = tuning.RELOAD_TILE_ELEMENTS // (1 if _loads_little(problem) else 2)
        return _reload(problem, KernelConfig("cooperative", 1, block, programs_per_row=cdiv(problem.cols, block)))
    block = tuning.COLUMN_READS_BLOCK_COLS
    warps, blocks = warps_for(block, tuning.MANY_ELEMENTS_PER_THREAD), cdiv(problem.cols, block)
    stages = 1 if _loads_little(problem) else tuning.COLUMN_READS_STAGES
    return KernelConfig("cooperative", 1, block, warps, stages, blocks)


def _reload(problem: GpuProblem, config: KernelConfig) -> KernelConfig:
    """Adds `reload`, and as many programs as have their tiles in the L1 cache.

    Narrow rows have so many threads that no more programs are resident than that, and no thread without elements. Other
    tiles have fewer threads, and a register limit. It also makes the compiler use more registers than it needs, which
    has the same effect.
    """
    tile_bytes = config.cols * problem.bytes_read  # a thread has as many bytes of all tensors as of one 16-bit tensor
    config = replace(config, reload=True)
    if config.schedule == "whole_row" and config.cols * problem.itemsize <= tuning.NARROW_RELOAD_BYTES:
        bytes_per_thread = tuning.NARROW_RELOAD_BYTES_PER_THREAD * (2 if _needs_slots(problem) else 1)
        warps = warps_for(problem.cols * problem.bytes_read, bytes_per_thread)
        return replace(config, num_warps=min(warps, tuning.NARROW_RELOAD_WARPS))
    config = replace(config, num_warps=warps_for(tile_bytes // 2, tuning.MANY_ELEMENTS_PER_THREAD))
    limit = max_registers_for(tuning.COLUMN_READS_BYTES_IN_FLIGHT // tile_bytes, config, problem.device)
    return replace(config, max_registers=limit or None)


def _loads_little(problem: GpuProblem) -> bool:
    """Whether the kernel reads one tensor, and one number per column."""
    return not problem.reads_several and len(problem.column_reads) == 1


def _needs_slots(problem: GpuProblem) -> bool:
    """Whether several numbers per column take more issue slots than more threads save time."""
    return problem.few_slots and problem.reads_several_columns
