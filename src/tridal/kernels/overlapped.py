"""The schedule "cooperative" with `overlap`: programs load their next tile before they wait for the statistics of one.

A program publishes the statistics of its part of a tile. Before it reads those of the other parts, it loads its next
tile and publishes the statistics of it. So the exchange takes no time if the loads take longer. The outputs of a tile
need its elements again: they are loaded from the core's cache.

`whole_row` explains how to read it. A tile is one row, without PEEL. Loads are repeated as with RELOAD. The source uses
only features of Triton 3.2.
"""

import triton
import triton.language as tl

from tridal.kernels.column_sums import add_terms, store_sums, zero_sums
from tridal.kernels.exchange import after_picked, clear_slots, collect, part_count, publish
from tridal.kernels.reductions import statistic
from tridal.kernels.scale_mask import scale_mask
from tridal.kernels.tile_counter import iterations, release_group
from tridal.kernels.tiles import (
    index_along,
    load_columns,
    load_index,
    load_rows,
    load_tile,
    store_rows,
    store_tile,
    tile_bounds,
    tile_pointers,
)

UNNORMALISED, REFINE = False, COLS >= 128
GUARD = TERM_GUARD = True  # a part may be all -inf


@triton.jit
def overlapped(
    each_pointer, score_mask, workspace, outer, inner, cols, long_blocks, each_group_stride, row_outer, row_inner,
    misalignment, each_parameter, scale, queries, heads, mask_batch, mask_head, mask_query, mask_col,
):  # fmt: skip
    """Computes the statistics of a group's next row, then the outputs of the row before it."""
    rank, group, groups, begin, end, step = iterations(outer * inner, False)
    each_sums = zero_sums(AXIS, COLS)
    part_first, next_first = tl.zeros([ROWS], ACC_DTYPE), tl.zeros([ROWS], ACC_DTYPE)
    if HAS_INDEX:
        index, next_index = tl.zeros([ROWS], tl.int32), tl.zeros([ROWS], tl.int32)
        picked, next_picked = tl.zeros([ROWS], ACC_DTYPE), tl.zeros([ROWS], ACC_DTYPE)
        picked_column, next_picked_column = tl.zeros([ROWS], ACC_DTYPE), tl.zeros([ROWS], ACC_DTYPE)
    for next_tile in tl.range(begin, end + step, step, num_stages=1):
        if next_tile < end:
            block, row, column, in_bounds, _, _ = tile_bounds(
                next_tile, rank, inner, cols, long_blocks, misalignment, in_outer, in_inner, COLS
            )  # fmt: skip
            each_row = load_rows(each_row_ptr, next_tile, inner, long_blocks, row_outer, row_inner)
            each_column = load_columns(each_column_ptr, column, cols, AXIS, COLS)
            each_at = tile_pointers(each_element_ptr, block, row, column, each_strides, AXIS, COLS, each_aligned)
            each_element = load_tile(each_at, in_bounds, True, False).to(ACC_DTYPE)
            each_score = scale_mask(
                each_score, in_bounds, block, row, column, inner, scale, score_mask, queries, heads, mask_batch,
                mask_head, mask_query, mask_col, MASK_BYTES, AXIS, COLS,
            )  # fmt: skip
            if HAS_INDEX:  # terms do not use these
                next_index, next_picked, next_picked_column = load_index(
                    each_indexed, next_tile, inner, cols, long_blocks, row_outer, row_inner, in_outer, in_inner, in_col
                )  # fmt: skip
                next_picked = tl.zeros([ROWS], ACC_DTYPE) + next_picked
                next_picked_column = tl.zeros([ROWS], ACC_DTYPE) + next_picked_column
            tile_column = column + index_along(COLS, AXIS, INT64_OFFSETS)
            first = statistic(each_first_term, in_bounds, FIRST, AXIS, COLS)
            second = tl.zeros_like(first)
            count = part_count(rank, cols, cols, COLS) if COUNTS else tl.cast(cols, ACC_DTYPE)
            each_later = statistic(each_later_term, in_bounds, each_later_reduce, AXIS, COLS)
            next_first = first
            if PICKS and HAS_RESULTS:
                first = after_picked(first, next_picked, cols)
            publish(workspace, next_tile, rank, first, second)
        if next_tile > begin:
            tile = next_tile - step
            block, row, column, in_bounds, _, _ = tile_bounds(
                tile, rank, inner, cols, long_blocks, misalignment, in_outer, in_inner, COLS
            )  # fmt: skip
            each_row = load_rows(each_row_ptr, tile, inner, long_blocks, row_outer, row_inner)
            first, second, part_scale = collect(workspace, tile, rank, part_first, cols, cols, *each_parameter)
            clear_slots(workspace, tile - 2 * groups, rank)
            count = tl.cast(cols, ACC_DTYPE)
            value = each_value
            store_rows(each_row_result, each_row_formula, tile, rank, inner, long_blocks, row_outer, row_inner)
            each_column = load_columns(each_column_ptr, column, cols, AXIS, COLS)
            each_at = tile_pointers(each_element_ptr, block, row, column, each_strides, AXIS, COLS, each_aligned)
            each_element = load_tile(each_at, in_bounds, False, True).to(ACC_DTYPE)
            each_score = scale_mask(
                each_score, in_bounds, block, row, column, inner, scale, score_mask, queries, heads, mask_batch,
                mask_head, mask_query, mask_col, MASK_BYTES, AXIS, COLS,
            )  # fmt: skip
            tile_column = column + index_along(COLS, AXIS, INT64_OFFSETS)
            each_result_at = tile_pointers(
                each_result, block, row, column, each_result_strides, AXIS, COLS, SAME_MISALIGNMENT
            )  # fmt: skip
            store_tile(
                each_formula, each_result_at, each_addend, tile, block, row, column, each_addend_strides, in_bounds,
                AXIS, COLS, SAME_MISALIGNMENT, each_streamed,
            )  # fmt: skip
            each_sums = add_terms(each_sums, each_sum_term, in_bounds)
        part_first = next_first
        if HAS_INDEX:
            index, picked, picked_column = next_index, next_picked, next_picked_column
    last = end - 1 - (end - 1 - begin) % step
    release_group(workspace, last, last - groups, outer * inner, group, groups)
    store_sums(each_sums_result, each_sums, each_sums, group, rank, cols, misalignment, in_outer)
