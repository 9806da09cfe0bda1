"""Configurations of the schedule `whole_row`: a tile holds whole rows. They depend on shapes only, not on resources."""

from __future__ import annotations

from tridal.devices.types import DeviceProperties, KernelConfig, Problem
from tridal_cuda.sizes import (
    CACHE_LINE,
    FEW_ELEMENTS_PER_THREAD,
    MANY_ELEMENTS_PER_THREAD,
    MAX_INNER_ELEMENTS,
    MIN_WAVES,
    NEIGHBOUR_ROWS,
    RELOAD_BYTES_IN_FLIGHT,
    bytes_per_tensor,
    enough_for_inner_reload,
    exp2_bias,
    half_of_registers,
    has_large_l1,
    limit_rows,
    max_elements,
    next_power_of_2,
    reads_several,
    tile_cols,
    warps_for,
    with_reload,
)

WIDE_ROW_COLS = 8192
"""Columns of a tile above which few programs are resident, so that the memory idles between their loads."""
_NARROW_TILE_ELEMENTS = 1024
"""Elements of a tile of several narrow rows, for one warp. Half of it where one tensor of float32 is read."""
_MIN_PEELED_ROWS = 8
"""Rows of a tile of narrow peeled rows, so that the vectors, the heads and the tails each fill a warp."""
_MAX_IDLE = 1 / 5
"""Share of padding elements in a tile with `reload`. Tiles with more padding do not use `reload`."""
_MAX_IDLE_PEELED = 1 / 4
"""The same for peeled rows."""
_MAX_RELOAD_ROW_BYTES = 64 << 10
"""Bytes of a row with `reload`. Two such rows fit in the L1 cache."""
_MIN_RELOAD_COLS = 64
"""Columns of inner-dim rows with `reload`. Shorter rows need few registers anyway."""


def whole_row(problem: Problem, device: DeviceProperties) -> KernelConfig | None:
    """The configuration for whole rows; None if a row is too wide for one tile."""
    if problem.layout != "inner":
        return _row_tile(problem, device)
    cols = next_power_of_2(problem.cols)
    if cols >= _MIN_RELOAD_COLS and enough_for_inner_reload(problem, device):
        return _inner_tile_with_reload(problem, device)
    max_tile = min(max_elements(problem, device), MAX_INNER_ELEMENTS)
    rows = min(next_power_of_2(problem.inner), max(NEIGHBOUR_ROWS, _NARROW_TILE_ELEMENTS // cols))
    if problem.aligned or reads_several(problem):
        rows = limit_rows(rows, cols, max_tile)
    elif (
        problem.itemsize > 2
    ):  # not 16-bit elements: the address of an unaligned element takes as many registers for them
        max_tile = max_elements(problem, device)
    if rows * cols > max_tile:
        return None
    elements_per_thread = FEW_ELEMENTS_PER_THREAD if reads_several(problem) else MANY_ELEMENTS_PER_THREAD
    warps = warps_for(rows * cols, elements_per_thread)
    return KernelConfig("whole_row", rows, cols, warps, exp2_bias=exp2_bias(problem), persistent=False)


def _row_tile(problem: Problem, device: DeviceProperties) -> KernelConfig | None:
    """The configuration for the layouts "row" and "strided"."""
    cols, peel = tile_cols(problem)
    one_16_bit = problem.itemsize == 2 and not reads_several(problem)
    full = one_16_bit or reads_several(problem) or peel or cols < (device.warp_size or 32)
    rows = max(1, (_NARROW_TILE_ELEMENTS if full else _NARROW_TILE_ELEMENTS // 2) // cols)
    if (
        peel and rows >= _MIN_PEELED_ROWS // 2
    ):  # head and tail need as many registers for a narrow row as for a wide one
        rows = max(_MIN_PEELED_ROWS, rows if one_16_bit else rows // 2)
    rows = min(next_power_of_2(problem.inner), rows)
    reload = _reloads(cols, peel, problem, device)
    if rows * cols > (half_of_registers(device) if reload else max_elements(problem, device)):
        return None
    many = cols > _NARROW_TILE_ELEMENTS and not reads_several(problem)
    warps = warps_for(rows * cols, MANY_ELEMENTS_PER_THREAD if many else FEW_ELEMENTS_PER_THREAD)
    if peel and one_16_bit and rows >= _MIN_PEELED_ROWS:
        warps = 2
    config = KernelConfig("whole_row", rows, cols, warps, peel=peel, exp2_bias=exp2_bias(problem), persistent=False)
    return with_reload(config, problem) if reload else config


def _reloads(cols: int, peel: bool, problem: Problem, device: DeviceProperties) -> bool:
    """Whether whole rows are computed with `reload`, in tiles of `cols` columns.

    If two tensors are read, wide rows of 16-bit elements reload, because a multiprocessor could hold too few of them.

    If one tensor is read, rows reload if they fill most of their tile and if two of them fit in the L1 cache. The tile
    needs at least `WIDE_ROW_COLS` columns. Half of that is enough if there are many waves. Peeled rows need twice as
    many columns, and scaled or masked rows four times as many, because the mask is reloaded too.
    """
    if problem.layout != "row" or problem.accumulator > 4 or not has_large_l1(device):
        return False
    if reads_several(problem):
        return cols > WIDE_ROW_COLS and problem.itemsize == 2
    if problem.scale_mask:
        min_cols = 4 * WIDE_ROW_COLS
    elif peel:
        min_cols = 2 * WIDE_ROW_COLS
    elif bytes_per_tensor(problem) > MIN_WAVES * RELOAD_BYTES_IN_FLIGHT * device.cores:
        min_cols = WIDE_ROW_COLS // 2
    else:
        min_cols = WIDE_ROW_COLS
    nearly_full = problem.cols > (1 - (_MAX_IDLE_PEELED if peel else _MAX_IDLE)) * cols
    return cols >= min_cols and nearly_full and cols * problem.itemsize <= _MAX_RELOAD_ROW_BYTES


def _inner_tile_with_reload(problem: Problem, device: DeviceProperties) -> KernelConfig | None:
    """The configuration for inner-dim rows with `reload`; None if a tile of full cache lines is too large.

    Tiles with half of each cache line waste half of the cache. So they are used only if two tensors are read, which
    takes two passes instead of three, and only in one of these cases:

    - A tile of full lines is too large.
    - A tile of full lines leaves no room for a second program, and a second program would help: two of them fit in the
      cache, or each multiprocessor has few tiles.
    """
    cols, max_tile = next_power_of_2(problem.cols), half_of_registers(device)
    rows_per_line = CACHE_LINE // problem.itemsize
    rows = min(next_power_of_2(problem.inner), rows_per_line)
    two_fit = 2 * problem.cols * CACHE_LINE * 2 <= (device.shared_memory or 0)
    few_tiles = problem.tiles(rows_per_line) < MIN_WAVES * device.cores
    max_full_lines = max_tile // 2 if two_fit or few_tiles else max_tile
    if reads_several(problem) and rows == rows_per_line and rows * cols > max_full_lines:
        rows //= 2
    if rows * cols > max_tile:
        return None
    config = KernelConfig("whole_row", rows, cols, exp2_bias=exp2_bias(problem), persistent=False)
    return with_reload(config, problem)
