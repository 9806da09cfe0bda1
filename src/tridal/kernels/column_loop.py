"""The schedule "column_loop" for rows that are wider than a tile: a program loops twice over blocks of columns.

The first loop computes the statistics of the rows, the second loop the output. `whole_row` explains how to read it.
With LANES above 1, a row is divided into so many lanes, which have their own statistics until the first loop ends. With
PEEL, the statistics of the head and the tail are computed before the loop, and there is no second loop.
"""

import triton
import triton.language as tl

from tridal.kernels.column_sums import add_to_sums, zero_stored_sums
from tridal.kernels.lanes import merge_lanes, reduce_lanes, split_lanes
from tridal.kernels.reductions import INF, masked, merge, statistic
from tridal.kernels.scale_mask import scale_mask
from tridal.kernels.tiles import (
    edge_pointers,
    index_along,
    load_columns,
    load_index,
    load_rows,
    store_rows,
    store_tile,
    tile_bounds,
    tile_pointers,
)

UNNORMALISED, REFINE = False, COLS >= 128
TERM_GUARD, GUARD = True, ZERO_MASKED_ROWS  # a block of columns may be all -inf
REBASE_BIAS = None  # the device's exp is fast enough for one number per row
STATISTICS = ROWS * LANES
WRITES = HAS_RESULTS or HAS_SUMS


@triton.jit
def column_loop(
    each_pointer, score_mask, outer, inner, cols, each_group_stride, row_outer, row_inner, misalignment, each_parameter,
    scale, queries, heads, mask_batch, mask_head, mask_query, mask_col,
):  # fmt: skip
    """Computes the statistics of each row, then calls the op's functions for every element."""
    for tile in tl.range(tl.program_id(0), outer * tl.cdiv(inner, ROWS), tl.num_programs(0)):
        each_row = load_rows(each_row_ptr, tile, inner, row_outer, row_inner)
        index, picked, picked_column = load_index(
            each_indexed, tile, inner, cols, row_outer, row_inner, in_outer, in_inner, in_col
        )  # fmt: skip
        each_first = tl.full([STATISTICS], -INF if FIRST == "max" else 0.0, ACC_DTYPE)
        each_later = tl.full([STATISTICS], -INF if each_later_reduce == "max" else 0.0, ACC_DTYPE)
        if FIRST is not None:
            counted = tl.zeros([STATISTICS], ACC_DTYPE)
            if PEEL:
                has_edge = tl.arange(0, STATISTICS) < ROWS  # the first lane
                # A variable keeps its type in a loop, and the loop below assigns to `_` and `count`.
                block, row, _column, _in_bounds, edge_column, edge_in_bounds = tile_bounds(
                    tile, 0, inner, cols, misalignment, in_outer, in_inner, VECTOR
                )  # fmt: skip
                each_edge_at = edge_pointers(each_element_ptr, block, row, edge_column, each_strides)
                each_edge = tl.load(each_edge_at, mask=edge_in_bounds, other=PADDING).to(ACC_DTYPE)
                each_edge_column = load_columns(each_column_ptr, edge_column, cols, 0, 1)
                edge_count = tl.sum(edge_in_bounds.to(ACC_DTYPE), 0)
                if COUNTS:
                    count = tl.maximum(edge_count, 1.0)
                part_first = first
                first = statistic(each_edge_first_term, edge_in_bounds, FIRST, 0, 1)
                each_edge_later = statistic(each_edge_later_term, edge_in_bounds, each_later_reduce, 0, 1)
                first = tl.where(has_edge, first, part_first)
                each_later = tl.where(has_edge, each_edge_later, each_later)
                counted = tl.where(has_edge, edge_count, counted)
                if COUNTS:
                    count = tl.maximum(counted, 1.0)
            for column_block in tl.range(0, tl.cdiv(cols, COLS), num_stages=NUM_STAGES):
                block, row, column, in_bounds, _, _ = tile_bounds(
                    tile, column_block, inner, cols, misalignment, in_outer, in_inner, COLS
                )  # fmt: skip
                each_at = tile_pointers(each_element_ptr, block, row, column, each_strides, AXIS, COLS, each_aligned)
                each_element = tl.load(each_at, mask=in_bounds, other=PADDING).to(ACC_DTYPE)
                each_score = scale_mask(
                    each_score, in_bounds, block, row, column, inner, scale, score_mask, queries, heads, mask_batch,
                    mask_head, mask_query, mask_col, MASK_BYTES, AXIS, COLS,
                )  # fmt: skip
                each_column = load_columns(each_column_ptr, column, cols, AXIS, COLS)
                tile_column = split_lanes(column + index_along(COLS, AXIS, INT64_OFFSETS))
                in_bounds = split_lanes(in_bounds)
                each_element = split_lanes(each_element)
                each_column = split_lanes(each_column)
                part_first = first
                first = merge(part_first, reduce_lanes(masked(each_first_term, in_bounds, FIRST), FIRST), FIRST)
                if SECOND is not None:
                    if COUNTS and (PEEL or LANES > 1):
                        part_count = counted
                        counted += reduce_lanes(in_bounds.to(ACC_DTYPE), "sum")
                        count = tl.maximum(counted, 1.0)  # a lane may have no elements
                    else:
                        part_count = tl.cast(column_block * COLS, ACC_DTYPE)
                        count = tl.cast(tl.minimum((column_block + 1) * COLS, cols), ACC_DTYPE)
                each_late = each_rebased
                each_later_part = reduce_lanes(masked(each_later_term, in_bounds, each_later_reduce), each_later_reduce)
                each_later = merge(each_later, each_later_part, each_later_reduce)
        count = tl.cast(cols, ACC_DTYPE)
        if LANES > 1 and FIRST is not None:
            part_first, part_count = first, counted
            first = tl.full([1], merge_lanes(part_first, FIRST), ACC_DTYPE)
            each_late = each_rebased
            each_later = tl.full([1], merge_lanes(each_later, each_later_reduce), ACC_DTYPE)
        part_scale = 1.0
        each_part_first = first
        value = each_value
        store_rows(each_row_result, each_row_formula, tile, 0, inner, row_outer, row_inner)
        for column_block in tl.range(0, tl.cdiv(cols, COLS) if WRITES else 0, num_stages=NUM_STAGES):
            block, row, column, in_bounds, _, _ = tile_bounds(
                tile, column_block, inner, cols, misalignment, in_outer, in_inner, COLS
            )  # fmt: skip
            each_at = tile_pointers(each_element_ptr, block, row, column, each_strides, AXIS, COLS, False)
            each_element = tl.load(each_at, mask=in_bounds, other=PADDING).to(ACC_DTYPE)
            each_score = scale_mask(
                each_score, in_bounds, block, row, column, inner, scale, score_mask, queries, heads, mask_batch,
                mask_head, mask_query, mask_col, MASK_BYTES, AXIS, COLS,
            )  # fmt: skip
            each_column = load_columns(each_column_ptr, column, cols, AXIS, COLS)
            tile_column = column + index_along(COLS, AXIS, INT64_OFFSETS)
            store_tile(
                each_formula,
                tile_pointers(each_result, block, row, column, each_result_strides, AXIS, COLS, False),
                each_addend, tile, block, row, column, each_addend_strides, in_bounds, AXIS, COLS, False, False,
            )  # fmt: skip
            add_to_sums(
                each_sums_result, each_sum_term, in_bounds, tile != tl.program_id(0), tl.program_id(0), column, cols
            )
    if HAS_SUMS:
        if tl.program_id(0) >= outer * tl.cdiv(inner, ROWS):
            zero_stored_sums(each_sums_result, tl.program_id(0), cols)
