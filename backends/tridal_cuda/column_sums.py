"""Configures kernels that sum a term over rows on a GPU: programs keep the sums of their columns in registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tridal.devices.types import KernelConfig, next_power_of_2
from tridal_accelerator.gpu import cdiv
from tridal_cuda import tuning
from tridal_cuda.gpu_problem import Fit, GpuProblem, warps_for
from tridal_cuda.resources import max_registers_for


def fit_column_sums(problem: GpuProblem) -> Fit | None:
    """Fits a kernel with `column_writes`. None stands for other kernels, layouts and dtypes.

    Programs loop over tiles, because each keeps sums in registers: those of its own block of columns if a row is wider
    than a tile. Because registers that hold sums cannot hold further tiles, loads are pipelined, or tiles are loaded
    again.
    """
    if not problem.column_writes or problem.layout == "inner" or problem.accumulator == 8:
        return None
    if not problem.aligned and (problem.itemsize == 2 or problem.tile_cols > tuning.SUMS_UNALIGNED_NARROW_COLS):
        fits = (problem.fit(config, tuning.SUMS_UNALIGNED_SPILL) for config in _runnable(problem, _unaligned(problem)))
    else:
        fits = (problem.fit(config).with_few_spills() for config in _runnable(problem, _pipelined(problem)))
    return next((fitted for fitted in fits if fitted.usable), None)


def _runnable(problem: GpuProblem, configs: Iterator[KernelConfig]) -> Iterator[KernelConfig]:
    """Leaves out several programs per row if the programs of the problem cannot exchange statistics."""
    return (config for config in configs if problem.can_exchange or config.schedule != "cooperative")


def _pipelined(problem: GpuProblem) -> Iterator[KernelConfig]:
    cols = problem.tile_cols
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
    most = tuning.SUMS_WIDE_COLS if problem.keeps_gate and problem.itemsize == 2 else tuning.SUMS_WIDEST_COLS
    cols = tuning.SUMS_MIN_BLOCK_COLS if problem.cols <= most else tuning.SUMS_MAX_BLOCK_COLS
    warps, blocks = warps_for(cols, tuning.FEW_ELEMENTS_PER_THREAD), cdiv(problem.cols, cols)
    yield KernelConfig("cooperative", 1, cols, warps, tuning.SUMS_STAGES, blocks)


def _unaligned(problem: GpuProblem) -> Iterator[KernelConfig]:
    """Configures unaligned rows, which are loaded element by element, without a pipeline.

    Wide rows of three tensors have blocks if programs can exchange, because two tiles would spill their elements.
    """
    cols, (first, rest), per_thread = problem.tile_cols, problem.first_and_rest, tuning.SUMS_ELEMENTS_PER_THREAD
    wide = problem.cols > tuning.SUMS_WIDE_COLS
    block = tuning.SUMS_MIN_BLOCK_COLS if wide else tuning.SUMS_UNALIGNED_BLOCK_COLS
    if len(problem.reads) < 3 or cols <= block or not problem.can_exchange:
        if rest <= _max_rest_cols(problem, first):
            two_tiles = KernelConfig("whole_row", 1, first, warps_for(first, per_thread), rest_cols=rest)
            two_tiles = _with_register_limit(problem, two_tiles)
            if _has_two_programs(problem, two_tiles):
                yield two_tiles
        if cols <= tuning.SUMS_UNALIGNED_COLS:
            one_tile = KernelConfig("whole_row", 1, cols, warps_for(cols, tuning.FEW_ELEMENTS_PER_THREAD))
            yield _with_register_limit(problem, one_tile)
    blocks, warps = cdiv(problem.cols, block), warps_for(block, per_thread)
    yield _with_register_limit(problem, KernelConfig("cooperative", 1, block, warps, programs_per_row=blocks))


def _max_rest_cols(problem: GpuProblem, first: int) -> int:
    """Returns the columns of the largest second tile of unaligned rows, or 0 if one tile or blocks are faster.

    The rest may be half of the first tile. That of the narrowest first tile may be as large as this tile, but not if
    the kernel adds a tensor: the gradient of LayerNorm with a residual would have 0.44 of copy instead of 0.58 for 781
    columns in bf16 (H200).
    """
    if not tuning.SUMS_UNALIGNED_MIN_FIRST <= first <= tuning.SUMS_UNALIGNED_MAX_FIRST:
        return 0
    if first == tuning.SUMS_UNALIGNED_MAX_FIRST and problem.itemsize == 2 and len(problem.column_writes) > 1:
        return first // tuning.SUMS_UNALIGNED_REST_PARTS
    return first // 2 if problem.added else max(first // 2, tuning.SUMS_UNALIGNED_MIN_FIRST)


def _has_two_programs(problem: GpuProblem, config: KernelConfig) -> bool:
    """Whether at least two programs are resident on a multiprocessor."""
    return (config.max_registers or tuning.MAX_REGISTERS) <= max_registers_for(2, config, problem.device)


def _with_register_limit(problem: GpuProblem, config: KernelConfig) -> KernelConfig:
    """Limits the registers to those that the elements of a thread need, unless these are almost all."""
    elements = config.row_cols // (32 * config.num_warps) * (problem.live_tiles + len(problem.column_writes))
    limits = (limit for most, limit in tuning.SUMS_UNALIGNED_REGISTERS if elements <= most)
    return replace(config, max_registers=next(limits, None))
