"""Configures the schedule `whole_row` on a GPU: each tile holds whole rows."""

from __future__ import annotations

from dataclasses import replace

from tridal.devices.types import KernelConfig, next_power_of_2
from tridal_accelerator.gpu import cdiv
from tridal_cuda import tuning
from tridal_cuda.gpu_problem import Fit, GpuProblem, limit_rows, warps_for
from tridal_cuda.resources import max_registers_for


def fit_whole_row(problem: GpuProblem) -> Fit | None:
    """Fits whole rows. None: rows are too wide, or `cooperative` keeps more bytes in flight."""
    config = _inner_tile(problem) if problem.layout == "inner" else _row_tile(problem)
    if config is None:
        return None
    can_cooperate = problem.layout != "inner" and config.cols > tuning.WIDE_ROW_COLS and problem.can_exchange
    if can_cooperate and (problem.few_rows or (problem.peel and not config.reload)):
        return None  # `cooperative` is better at any occupancy, so do not compile
    if config.reload:
        fitted = _fit_reload(config, problem)
        fitted = fitted if can_cooperate else fitted.with_few_spills()
        busy = fitted.bytes_in_flight > tuning.BYTES_IN_FLIGHT and fitted.resources.spills <= tuning.MAX_SPILL_RELOAD
    else:
        fitted = problem.fit(config).with_few_spills(tuning.BYTES_IN_FLIGHT)
        min_bytes = tuning.MIN_BYTES_IN_FLIGHT if fitted.occupancy > 1 else tuning.BYTES_IN_FLIGHT
        busy = fitted.bytes_in_flight > min_bytes and problem.rows >= tuning.MIN_WAVES * fitted.resident
    return fitted if busy or not can_cooperate else None


def _fit_reload(config: KernelConfig, problem: GpuProblem) -> Fit:
    """Fits with `reload`. The programs fill half of the L1 cache, or less if the kernel would spill.

    More programs would evict each other's rows from the cache. A register limit also makes the compiler load earlier.
    """
    max_programs = cdiv(tuning.RELOAD_BYTES_IN_FLIGHT, problem.bytes_per_tile(config))
    all_limits = (max_registers_for(programs, config, problem.device) for programs in range(1, max_programs + 1))
    limits = {min(tuning.MAX_REGISTERS, limit) for limit in all_limits if limit}
    # There is no limit if the device's number of registers is not known.
    tried: list[int | None] = [*sorted(limits)[: tuning.MAX_LIMITS_TRIED]] or [None]
    # If two tensors are read, one more program is worth a few spilled bytes.
    max_spill = tuning.MAX_SPILL_RELOAD if problem.reads_several else 0
    for limit in tried:
        fitted = problem.fit(replace(config, max_registers=limit))
        if fitted.resources.spills <= max_spill:
            break
    return fitted


def _row_tile(problem: GpuProblem) -> KernelConfig | None:
    """Configures the layouts "row" and "strided", unless a row is too wide for one tile."""
    cols, peel, several = problem.tile_cols, problem.peel, problem.reads_several
    one_16_bit = problem.itemsize == 2 and not several
    full = problem.itemsize == 2 or several or peel or cols < (problem.device.warp_size or 32)
    rows = max(1, (tuning.NARROW_TILE_ELEMENTS if full else tuning.NARROW_TILE_ELEMENTS // 2) // cols)
    if peel and rows >= tuning.MIN_PEELED_ROWS // 2:
        # The head and the tail of a narrow row need as many registers as those of a wide row.
        rows = max(tuning.MIN_PEELED_ROWS, rows if one_16_bit else rows // 2)
    rows = next_power_of_2(problem.inner, rows)
    reload = _uses_reload(problem)
    if rows * cols > (problem.half_of_registers if reload else problem.max_elements):
        return None
    full_and_wide = cols * problem.itemsize >= tuning.FULL_TILE_BYTES and problem.padding < tuning.LITTLE_PADDING
    many = cols > tuning.NARROW_TILE_ELEMENTS and not several and not full_and_wide
    warps = warps_for(rows * cols, tuning.MANY_ELEMENTS_PER_THREAD if many else tuning.FEW_ELEMENTS_PER_THREAD)
    if peel and one_16_bit and rows >= tuning.MIN_PEELED_ROWS:
        warps = 2
    config = KernelConfig("whole_row", rows, cols, warps, persistent=False)
    return problem.with_reload(config) if reload else config


def _uses_reload(problem: GpuProblem) -> bool:
    """Whether whole rows are computed with `reload`.

    If two tensors are read, wide 16-bit rows use it, because too few of them would fit in registers.
    If one tensor is read, wide rows use it if they fill most of their tile and two of them fit in the L1 cache.
    """
    cols = problem.tile_cols
    if problem.layout != "row" or problem.accumulator > 4 or problem.whole_rows or not problem.has_large_l1:
        return False
    if problem.reads_several:
        return cols > tuning.WIDE_ROW_COLS and problem.itemsize == 2
    if problem.scale_mask:
        min_cols = 4 * tuning.WIDE_ROW_COLS  # the mask is loaded again too
    elif problem.peel:
        min_cols = 2 * tuning.WIDE_ROW_COLS
    elif problem.bytes_per_tensor > tuning.MIN_WAVES * tuning.RELOAD_BYTES_IN_FLIGHT * problem.device.cores:
        min_cols = tuning.WIDE_ROW_COLS // 2  # many waves hide the additional loads
    else:
        min_cols = tuning.WIDE_ROW_COLS
    nearly_full = problem.cols > (1 - (tuning.MAX_PADDING_PEELED if problem.peel else tuning.MAX_PADDING)) * cols
    return cols >= min_cols and nearly_full and cols * problem.itemsize <= tuning.MAX_RELOAD_ROW_BYTES


def _inner_tile(problem: GpuProblem) -> KernelConfig | None:
    """Configures the layout "inner", unless a row is too long for one tile."""
    cols, several = problem.tile_cols, problem.reads_several
    if cols >= tuning.MIN_RELOAD_INNER_COLS and problem.reloads_inner_rows:
        return _inner_tile_with_reload(problem)
    max_tile = min(problem.max_elements, tuning.MAX_INNER_ELEMENTS)
    rows = next_power_of_2(problem.inner, max(tuning.INNER_ROWS, tuning.NARROW_TILE_ELEMENTS // cols))
    if problem.aligned or several:
        rows = limit_rows(rows, cols, max_tile)
    elif problem.itemsize > 2:  # unaligned 16-bit elements need many registers for their addresses
        max_tile = problem.max_elements
    if rows * cols > max_tile:
        return None
    warps = warps_for(rows * cols, tuning.FEW_ELEMENTS_PER_THREAD if several else tuning.MANY_ELEMENTS_PER_THREAD)
    return KernelConfig("whole_row", rows, cols, warps, persistent=False)


def _inner_tile_with_reload(problem: GpuProblem) -> KernelConfig | None:
    """Configures inner-dim rows with `reload`, unless a tile is too large.

    The rows of a tile fill a cache line. A tile with half as many rows wastes half of the cache. It is used only if two
    tensors are read, which takes two passes instead of three, and if the larger tile has more than `max_full_lines`
    elements. This limit leaves room for a second program if two tiles fit in the cache or if there are few tiles.
    """
    cols, max_tile = problem.tile_cols, problem.half_of_registers
    rows_per_line = tuning.CACHE_LINE // problem.itemsize
    rows = next_power_of_2(problem.inner, rows_per_line)
    two_fit = 2 * problem.cols * tuning.CACHE_LINE * 2 <= (problem.device.shared_memory or 0)
    few_tiles = problem.tiles(rows_per_line) < tuning.MIN_WAVES * problem.device.cores
    max_full_lines = max_tile // 2 if two_fit or few_tiles else max_tile
    if problem.reads_several and rows == rows_per_line and rows * cols > max_full_lines:
        rows //= 2
    if rows * cols > max_tile:
        return None
    return problem.with_reload(KernelConfig("whole_row", rows, cols, persistent=False))
