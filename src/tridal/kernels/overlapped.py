"""The schedule "cooperative" with `overlap`: programs load their next tile before they wait for the statistics of one.

A program publishes the statistics of its part of a tile. Before it reads those of the other parts, it loads its next
tile and publishes the statistics of it. So the exchange takes no time if the loads take longer. The outputs of a tile
need its elements again: they are loaded from the core's cache.

The arguments are those of `whole_row`. A tile is one row, without PEEL. Loads are repeated as with RELOAD. The source
uses only features of Triton 3.2.
"""

import triton
import triton.language as tl

from tridal.kernels.column_sums import add_terms, store_sums, zero_sums
from tridal.kernels.exchange import clear_slots, collect, part_count, publish
from tridal.kernels.outputs import write_rows, write_tile
from tridal.kernels.reductions import first_statistic, second_statistic
from tridal.kernels.scale_mask import load_elements
from tridal.kernels.tile_counter import iterations, release_group
from tridal.kernels.tiles import (
    index_along,
    load_columns,
    load_index,
    load_rows,
    tile_bounds,
    tile_pointers,
)


@triton.jit
def overlapped(
    out_ptr, out2_ptr, row_out_ptr, row_out2_ptr, column_out_ptr, column_out2_ptr, in_ptr, in2_ptr, added_ptr,
    per_row_ptr, per_row2_ptr, index_ptr, per_column_ptr, per_column2_ptr, mask_ptr, workspace, outer, inner, cols,
    long_blocks, in_outer, in_inner, in_col, out_outer, out_inner, out_col, row_outer, row_inner, misalignment, param0,
    param1, scale, queries, heads, mask_batch, mask_head, mask_query, mask_col,
    first_term: tl.constexpr, second_term: tl.constexpr, rebase: tl.constexpr, row_value: tl.constexpr,
    finish: tl.constexpr, finish2: tl.constexpr, row_write: tl.constexpr, row_write2: tl.constexpr,
    column_term: tl.constexpr, column_term2: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
    COUNTS: tl.constexpr, PICKS: tl.constexpr, PICKS_COLUMN: tl.constexpr, PADDING: tl.constexpr,
    NEUTRAL_PADDING: tl.constexpr, MASKS_TERMS: tl.constexpr, ACC_DTYPE: tl.constexpr, EXP2_BIAS: tl.constexpr,
    INT64_OFFSETS: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    PROGRAMS_PER_ROW: tl.constexpr, SPLIT_POW2: tl.constexpr, SLOTS: tl.constexpr, PEEL: tl.constexpr,
    VECTOR: tl.constexpr, SAME_MISALIGNMENT: tl.constexpr, CAUSAL: tl.constexpr, ZERO_MASKED_ROWS: tl.constexpr,
    MASK_BYTES: tl.constexpr, OP_HASH: tl.constexpr,
):  # fmt: skip
    """Computes the statistics of a group's next row, then the outputs of the row before it."""
    rank, group, groups, begin, end, step = iterations(outer * inner, PROGRAMS_PER_ROW, True, False)
    REFINE: tl.constexpr = COLS >= 128
    sums = zero_sums(column_out_ptr, AXIS, ROWS, COLS, ACC_DTYPE)
    sums2 = zero_sums(column_out2_ptr, AXIS, ROWS, COLS, ACC_DTYPE)
    part_first, next_first = tl.zeros([ROWS], ACC_DTYPE), tl.zeros([ROWS], ACC_DTYPE)
    index, picked, picked_column = 0, 0.0, 0.0
    if index_ptr is not None:
        index, next_index = tl.zeros([ROWS], tl.int32), tl.zeros([ROWS], tl.int32)
        picked, next_picked = tl.zeros([ROWS], ACC_DTYPE), tl.zeros([ROWS], ACC_DTYPE)
        picked_column, next_picked_column = tl.zeros([ROWS], ACC_DTYPE), tl.zeros([ROWS], ACC_DTYPE)
    for next_tile in tl.range(begin, end + step, step, num_stages=1):
        if next_tile < end:
            block, row, column, in_bounds, _, _ = tile_bounds(
                next_tile, rank, inner, cols, long_blocks, misalignment, in_outer, in_inner, INT64_OFFSETS, AXIS, ROWS,
                COLS, PEEL, VECTOR, MASKS_TERMS,
            )  # fmt: skip
            per_row = load_rows(
                per_row_ptr, next_tile, inner, long_blocks, row_outer, row_inner, ROWS, VECTOR, ACC_DTYPE
            )  # fmt: skip
            per_row2 = load_rows(
                per_row2_ptr, next_tile, inner, long_blocks, row_outer, row_inner, ROWS, VECTOR, ACC_DTYPE
            )  # fmt: skip
            per_column = load_columns(per_column_ptr, column, cols, INT64_OFFSETS, AXIS, ROWS, COLS, PEEL, ACC_DTYPE)
            per_column2 = load_columns(per_column2_ptr, column, cols, INT64_OFFSETS, AXIS, ROWS, COLS, PEEL, ACC_DTYPE)
            x, x2 = load_elements(
                in_ptr, in2_ptr, block, row, column, in_bounds, inner, in_outer, in_inner, in_col, out_outer, out_inner,
                out_col, scale, mask_ptr, queries, heads, mask_batch, mask_head, mask_query, mask_col, CAUSAL,
                MASK_BYTES, PADDING, INT64_OFFSETS, AXIS, ROWS, COLS, PEEL, SAME_MISALIGNMENT, True, ACC_DTYPE,
            )  # fmt: skip
            if index_ptr is not None:
                # Another program may write these elements in place, but only after this one has published.
                new_index, new_picked, new_picked_column = load_index(
                    index_ptr, in_ptr, per_column_ptr, next_tile, inner, cols, long_blocks, row_outer, row_inner,
                    in_outer, in_inner, in_col, INT64_OFFSETS, ROWS, VECTOR, ACC_DTYPE, PICKS, PICKS_COLUMN,
                )  # fmt: skip
                next_index, next_picked = new_index, tl.zeros([ROWS], ACC_DTYPE) + new_picked
                next_picked_column = tl.zeros([ROWS], ACC_DTYPE) + new_picked_column
            first = first_statistic(
                x, x2 if in2_ptr is not None else None, in_bounds, per_row, per_row2, per_column, per_column2,
                column + index_along(COLS, AXIS, INT64_OFFSETS), param0, param1, first_term, FIRST, NEUTRAL_PADDING,
                AXIS, ROWS, COLS, EXP2_BIAS,
            )  # fmt: skip
            second = tl.zeros_like(first)
            if SECOND is not None:
                count = tl.cast(cols, ACC_DTYPE)
                if COUNTS:
                    count = part_count(rank, cols, cols, COLS)
                second = second_statistic(
                    x, x2 if in2_ptr is not None else None, in_bounds, per_row, per_row2, per_column, per_column2,
                    column + index_along(COLS, AXIS, INT64_OFFSETS), param0, param1, first, count, second_term,
                    SECOND, NEUTRAL_PADDING, AXIS, ROWS, COLS, EXP2_BIAS,
                    False, True,
                )  # fmt: skip
            publish(workspace, next_tile, rank, first, second, ROWS, COLS, SLOTS)
            next_first = first
        if next_tile > begin:
            tile = next_tile - step
            block, row, column, in_bounds, _, _ = tile_bounds(
                tile, rank, inner, cols, long_blocks, misalignment, in_outer, in_inner, INT64_OFFSETS, AXIS, ROWS, COLS,
                PEEL, VECTOR, MASKS_TERMS,
            )  # fmt: skip
            per_row = load_rows(per_row_ptr, tile, inner, long_blocks, row_outer, row_inner, ROWS, VECTOR, ACC_DTYPE)
            per_row2 = load_rows(per_row2_ptr, tile, inner, long_blocks, row_outer, row_inner, ROWS, VECTOR, ACC_DTYPE)
            first, second, part_scale = collect(
                workspace, tile, rank, part_first, cols, cols, param0, param1, rebase, FIRST, SECOND, PROGRAMS_PER_ROW,
                SPLIT_POW2, ROWS, COLS, SLOTS, COUNTS, EXP2_BIAS,
            )  # fmt: skip
            clear_slots(workspace, tile - 2 * groups, rank, PROGRAMS_PER_ROW, ROWS, SLOTS)
            count = tl.cast(cols, ACC_DTYPE)
            value = None  # Triton 3.3 has no None in tuples
            if row_value is not None:
                value = row_value(
                    per_row, per_row2, index, picked, picked_column, param0, param1, part_scale, first, second, count,
                    EXP2_BIAS, REFINE, ZERO_MASKED_ROWS,
                )  # fmt: skip
            write_rows(
                row_out_ptr, row_write, per_row, per_row2, index, picked, picked_column, param0, param1, first, second,
                value, count, tile, rank, inner, long_blocks, row_outer, row_inner, ROWS, VECTOR,
            )  # fmt: skip
            write_rows(
                row_out2_ptr, row_write2, per_row, per_row2, index, picked, picked_column, param0, param1, first,
                second, value, count, tile, rank, inner, long_blocks, row_outer, row_inner, ROWS, VECTOR,
            )  # fmt: skip
            per_column = load_columns(per_column_ptr, column, cols, INT64_OFFSETS, AXIS, ROWS, COLS, PEEL, ACC_DTYPE)
            per_column2 = load_columns(per_column2_ptr, column, cols, INT64_OFFSETS, AXIS, ROWS, COLS, PEEL, ACC_DTYPE)
            x, x2 = load_elements(
                in_ptr, in2_ptr, block, row, column, in_bounds, inner, in_outer, in_inner, in_col, out_outer, out_inner,
                out_col, scale, mask_ptr, queries, heads, mask_batch, mask_head, mask_query, mask_col, CAUSAL,
                MASK_BYTES, PADDING, INT64_OFFSETS, AXIS, ROWS, COLS, PEEL, SAME_MISALIGNMENT, False, ACC_DTYPE,
            )  # fmt: skip
            x2 = x2 if in2_ptr is not None else None
            tile_column = column + index_along(COLS, AXIS, INT64_OFFSETS)
            if out_ptr is not None:
                out_pointers = tile_pointers(
                    out_ptr, block, row, column, out_outer, out_inner, out_col, INT64_OFFSETS, AXIS, ROWS, COLS,
                    SAME_MISALIGNMENT,
                )  # fmt: skip
                write_tile(
                    out_ptr, out2_ptr, added_ptr, out_pointers, x, x2, per_row, per_row2, per_column, per_column2,
                    index, tile_column, param0, param1, part_first, part_scale, first, second, value, count, tile,
                    block, row, column, in_bounds, out_outer, out_inner, out_col, finish, finish2, INT64_OFFSETS, AXIS,
                    ROWS, COLS, PROGRAMS_PER_ROW, SAME_MISALIGNMENT, True, ACC_DTYPE, EXP2_BIAS, False, True, REFINE,
                    ZERO_MASKED_ROWS,
                )  # fmt: skip
            if column_out_ptr is not None:
                sums = add_terms(
                    sums, x, x2, per_row, per_row2, per_column, per_column2, index, tile_column, param0, param1,
                    part_first, part_scale, first, second, value, count, in_bounds, column_term, AXIS, ROWS, PEEL,
                    NEUTRAL_PADDING, EXP2_BIAS, False, True, REFINE, ZERO_MASKED_ROWS,
                )  # fmt: skip
            if column_out2_ptr is not None:
                sums2 = add_terms(
                    sums2, x, x2, per_row, per_row2, per_column, per_column2, index, tile_column, param0, param1,
                    part_first, part_scale, first, second, value, count, in_bounds, column_term2, AXIS, ROWS, PEEL,
                    NEUTRAL_PADDING, EXP2_BIAS, False, True, REFINE, ZERO_MASKED_ROWS,
                )  # fmt: skip
        part_first = next_first
        if index_ptr is not None:
            index, picked, picked_column = next_index, next_picked, next_picked_column
    last = end - 1 - (end - 1 - begin) % step
    release_group(
        workspace, last, last - groups, outer * inner, group, groups, PROGRAMS_PER_ROW, SPLIT_POW2, ROWS, SLOTS
    )  # fmt: skip
    if column_out_ptr is not None:
        store_sums(
            column_out_ptr, sums, 0.0, group, rank, cols, misalignment, in_outer, AXIS, ROWS, COLS, PEEL, VECTOR
        )  # fmt: skip
    if column_out2_ptr is not None:
        store_sums(
            column_out2_ptr, sums2, 0.0, group, rank, cols, misalignment, in_outer, AXIS, ROWS, COLS, PEEL, VECTOR
        )  # fmt: skip
