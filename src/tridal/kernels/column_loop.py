"""The schedule "column_loop" for rows that are wider than a tile: a program loops twice over blocks of columns.

The first loop computes the statistics of the rows, the second loop the output. `whole_row` describes the parameters.
With LANES above 1, a row is divided into so many lanes, which have their own statistics until the first loop ends. With
PEEL, the statistics of the head and the tail are computed before the loop, and there is no second loop.
"""

import triton
import triton.language as tl

from tridal.kernels.column_sums import add_to_sums, zero_stored_sums
from tridal.kernels.lanes import edge_statistics, merge_lanes, reduce_lanes, split_lanes
from tridal.kernels.outputs import plus, write_rows
from tridal.kernels.reductions import masked, merge
from tridal.kernels.scale_mask import scale_mask
from tridal.kernels.tiles import (
    index_along,
    load_columns,
    load_index,
    load_rows,
    tile_bounds,
    tile_pointers,
)

_INF = tl.constexpr(float("inf"))


@triton.jit
def column_loop(
    out_ptr, out2_ptr, row_out_ptr, row_out2_ptr, column_out_ptr, column_out2_ptr, in_ptr, in2_ptr, added_ptr,
    per_row_ptr, per_row2_ptr, index_ptr, per_column_ptr, per_column2_ptr, mask_ptr, outer, inner, cols, in_outer,
    in_inner, in_col, out_outer, out_inner, out_col, row_outer, row_inner, misalignment, param0, param1, scale, queries,
    heads, mask_batch, mask_head, mask_query, mask_col,
    first_term: tl.constexpr, second_term: tl.constexpr, rebase: tl.constexpr, row_value: tl.constexpr,
    finish: tl.constexpr, finish2: tl.constexpr, row_write: tl.constexpr, row_write2: tl.constexpr,
    column_term: tl.constexpr, column_term2: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
    COUNTS: tl.constexpr, PICKS: tl.constexpr, PICKS_COLUMN: tl.constexpr, PADDING: tl.constexpr,
    NEUTRAL_PADDING: tl.constexpr, MASKS_TERMS: tl.constexpr, ACC_DTYPE: tl.constexpr, EXP2_BIAS: tl.constexpr,
    INT64_OFFSETS: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, LANES: tl.constexpr,
    STAGES: tl.constexpr, PEEL: tl.constexpr, VECTOR: tl.constexpr, SAME_MISALIGNMENT: tl.constexpr,
    CAUSAL: tl.constexpr, ZERO_MASKED_ROWS: tl.constexpr, MASK_BYTES: tl.constexpr, OP_HASH: tl.constexpr,
):  # fmt: skip
    """Computes the statistics of each row, then calls the op's function `finish` for every element."""
    STATISTICS: tl.constexpr = ROWS * LANES if FIRST is not None else ROWS
    for tile in tl.range(tl.program_id(0), outer * tl.cdiv(inner, ROWS), tl.num_programs(0)):
        per_row = load_rows(per_row_ptr, tile, inner, None, row_outer, row_inner, ROWS, 1, ACC_DTYPE)
        per_row2 = load_rows(per_row2_ptr, tile, inner, None, row_outer, row_inner, ROWS, 1, ACC_DTYPE)
        index, picked, picked_column = load_index(
            index_ptr, in_ptr, per_column_ptr, tile, inner, cols, None, row_outer, row_inner, in_outer, in_inner,
            in_col, INT64_OFFSETS, ROWS, 1, ACC_DTYPE, PICKS, PICKS_COLUMN,
        )  # fmt: skip
        first = tl.full([STATISTICS], -_INF if FIRST == "max" else 0.0, ACC_DTYPE)
        second = tl.full([STATISTICS], -_INF if SECOND == "max" else 0.0, ACC_DTYPE)
        counted = 0.0
        if FIRST is not None:
            counted = tl.zeros([ROWS * LANES], ACC_DTYPE)
            if PEEL:
                edge_first, edge_second, edge_count = edge_statistics(
                    in_ptr, in2_ptr, per_row, per_row2, per_column_ptr, per_column2_ptr, tile, inner, cols, in_outer,
                    in_inner, out_outer, out_inner, misalignment, param0, param1, first_term, second_term, FIRST,
                    SECOND, PADDING, NEUTRAL_PADDING, ACC_DTYPE, EXP2_BIAS, INT64_OFFSETS, ROWS, VECTOR,
                )  # fmt: skip
                has_edge = tl.arange(0, ROWS * LANES) < ROWS  # the first lane
                first, second = tl.where(has_edge, edge_first, first), tl.where(has_edge, edge_second, second)
                counted = tl.where(has_edge, edge_count, counted)
            for column_block in tl.range(0, tl.cdiv(cols, COLS), num_stages=STAGES):
                block, row, column, in_bounds, _, _ = tile_bounds(
                    tile, column_block, inner, cols, None, misalignment, in_outer, in_inner, INT64_OFFSETS, AXIS, ROWS,
                    COLS, PEEL, VECTOR, MASKS_TERMS,
                )  # fmt: skip
                pointers = tile_pointers(
                    in_ptr, block, row, column, in_outer, in_inner, in_col, INT64_OFFSETS, AXIS, ROWS, COLS, PEEL
                )  # fmt: skip
                x = tl.load(pointers, mask=in_bounds, other=PADDING).to(ACC_DTYPE)
                x = scale_mask(
                    x, in_bounds, block, row, column, inner, scale, mask_ptr, queries, heads, mask_batch, mask_head,
                    mask_query, mask_col, CAUSAL, MASK_BYTES, INT64_OFFSETS, AXIS, ROWS, COLS,
                )  # fmt: skip
                x2 = None
                if in2_ptr is not None:
                    pointers2 = tile_pointers(
                        in2_ptr, block, row, column, out_outer, out_inner, out_col, INT64_OFFSETS, AXIS, ROWS, COLS,
                        SAME_MISALIGNMENT,
                    )  # fmt: skip
                    x2 = tl.load(pointers2, mask=in_bounds, other=PADDING).to(ACC_DTYPE)
                per_column = load_columns(
                    per_column_ptr, column, cols, INT64_OFFSETS, AXIS, ROWS, COLS, PEEL, ACC_DTYPE
                )  # fmt: skip
                per_column2 = load_columns(
                    per_column2_ptr, column, cols, INT64_OFFSETS, AXIS, ROWS, COLS, PEEL, ACC_DTYPE
                )  # fmt: skip
                tile_column = column + index_along(COLS, AXIS, INT64_OFFSETS)
                if LANES > 1:
                    tile_column = split_lanes(tile_column, LANES, VECTOR)
                    x, in_bounds = split_lanes(x, LANES, VECTOR), split_lanes(in_bounds, LANES, VECTOR)
                    if in2_ptr is not None:
                        x2 = split_lanes(x2, LANES, VECTOR)
                    if per_column_ptr is not None:
                        per_column = split_lanes(per_column, LANES, VECTOR)
                    if per_column2_ptr is not None:
                        per_column2 = split_lanes(per_column2, LANES, VECTOR)
                term = first_term(
                    x, x2, per_row, per_row2, per_column, per_column2, tile_column, param0, param1, AXIS, EXP2_BIAS
                )  # fmt: skip
                term = masked(term, in_bounds, FIRST, NEUTRAL_PADDING)
                merged = merge(first, reduce_lanes(term, FIRST, AXIS, ROWS, LANES, VECTOR, EXP2_BIAS), FIRST)
                if SECOND is not None:
                    if COUNTS and (PEEL or LANES > 1):
                        before = counted
                        counted += reduce_lanes(
                            in_bounds.to(ACC_DTYPE), "sum", AXIS, ROWS, LANES, VECTOR, EXP2_BIAS
                        )  # fmt: skip
                        count = tl.maximum(counted, 1.0)  # a lane may have no elements
                    else:
                        before = tl.cast(column_block * COLS, ACC_DTYPE)
                        count = tl.cast(tl.minimum((column_block + 1) * COLS, cols), ACC_DTYPE)
                    if rebase is not None:  # None: the device's exp is fast enough for one number per row
                        second = rebase(second, first, merged, before, count, param0, param1, None)
                    term = second_term(
                        x, x2, per_row, per_row2, per_column, per_column2, tile_column, param0, param1, merged, count,
                        in_bounds, AXIS, EXP2_BIAS, False, True,
                    )  # fmt: skip
                    term = masked(term, in_bounds, SECOND, NEUTRAL_PADDING)
                    part = reduce_lanes(term, SECOND, AXIS, ROWS, LANES, VECTOR, EXP2_BIAS)
                    second = merge(second, part, SECOND)
                first = merged
        count = tl.cast(cols, ACC_DTYPE)
        if LANES > 1 and FIRST is not None:
            first, second = merge_lanes(first, second, counted, count, param0, param1, rebase, FIRST, SECOND)
        value = None  # Triton 3.3 has no None in tuples
        if row_value is not None:
            value = row_value(
                per_row, per_row2, index, picked, picked_column, param0, param1, 1.0, first, second, count, EXP2_BIAS,
                COLS >= 128, ZERO_MASKED_ROWS,
            )  # fmt: skip
        write_rows(
            row_out_ptr, row_write, per_row, per_row2, index, picked, picked_column, param0, param1, first, second,
            value, count, tile, 0, inner, None, row_outer, row_inner, ROWS, 1,
        )  # fmt: skip
        write_rows(
            row_out2_ptr, row_write2, per_row, per_row2, index, picked, picked_column, param0, param1, first, second,
            value, count, tile, 0, inner, None, row_outer, row_inner, ROWS, 1,
        )  # fmt: skip
        WRITES: tl.constexpr = out_ptr is not None or column_out_ptr is not None
        for column_block in tl.range(0, tl.cdiv(cols, COLS) if WRITES else 0, num_stages=STAGES):
            block, row, column, in_bounds, _, _ = tile_bounds(
                tile, column_block, inner, cols, None, 0, in_outer, in_inner, INT64_OFFSETS, AXIS, ROWS, COLS, False, 1,
                MASKS_TERMS,
            )  # fmt: skip
            pointers = tile_pointers(
                in_ptr, block, row, column, in_outer, in_inner, in_col, INT64_OFFSETS, AXIS, ROWS, COLS, False
            )  # fmt: skip
            if in2_ptr is not None:
                pointers2 = tile_pointers(
                    in2_ptr, block, row, column, out_outer, out_inner, out_col, INT64_OFFSETS, AXIS, ROWS, COLS, False
                )  # fmt: skip
            x = tl.load(pointers, mask=in_bounds, other=PADDING).to(ACC_DTYPE)
            x = scale_mask(
                x, in_bounds, block, row, column, inner, scale, mask_ptr, queries, heads, mask_batch, mask_head,
                mask_query, mask_col, CAUSAL, MASK_BYTES, INT64_OFFSETS, AXIS, ROWS, COLS,
            )  # fmt: skip
            x2 = None
            if in2_ptr is not None:
                x2 = tl.load(pointers2, mask=in_bounds, other=PADDING).to(ACC_DTYPE)
            per_column = load_columns(per_column_ptr, column, cols, INT64_OFFSETS, AXIS, ROWS, COLS, False, ACC_DTYPE)
            per_column2 = load_columns(per_column2_ptr, column, cols, INT64_OFFSETS, AXIS, ROWS, COLS, False, ACC_DTYPE)
            tile_column = column + index_along(COLS, AXIS, INT64_OFFSETS)
            if out_ptr is not None:
                y = finish(
                    x, x2, per_row, per_row2, per_column, per_column2, index, tile_column, param0, param1, first, 1.0,
                    first, second, value, count, AXIS, EXP2_BIAS, False, ZERO_MASKED_ROWS, COLS >= 128,
                    ZERO_MASKED_ROWS,
                )  # fmt: skip
                pointers = tile_pointers(
                    out_ptr, block, row, column, out_outer, out_inner, out_col, INT64_OFFSETS, AXIS, ROWS, COLS, False
                )  # fmt: skip
                y = plus(
                    y, added_ptr, tile, block, row, column, out_outer, out_inner, out_col, in_bounds, INT64_OFFSETS,
                    AXIS, ROWS, COLS, 1, False, ACC_DTYPE,
                )  # fmt: skip
                tl.store(pointers, y.to(out_ptr.dtype.element_ty), mask=in_bounds)
                if out2_ptr is not None:
                    y2 = finish2(
                        x, x2, per_row, per_row2, per_column, per_column2, index, tile_column, param0, param1, first,
                        1.0, first, second, value, count, AXIS, EXP2_BIAS, False, ZERO_MASKED_ROWS, COLS >= 128,
                        ZERO_MASKED_ROWS,
                    )  # fmt: skip
                    pointers2 = tile_pointers(
                        out2_ptr, block, row, column, out_outer, out_inner, out_col, INT64_OFFSETS, AXIS, ROWS, COLS,
                        False,
                    )  # fmt: skip
                    tl.store(pointers2, y2.to(out2_ptr.dtype.element_ty), mask=in_bounds)
            if column_out_ptr is not None:
                term = column_term(
                    x, x2, per_row, per_row2, per_column, per_column2, index, tile_column, param0, param1, first, 1.0,
                    first, second, value, count, AXIS, EXP2_BIAS, False, ZERO_MASKED_ROWS, COLS >= 128,
                    ZERO_MASKED_ROWS,
                )  # fmt: skip
                add_to_sums(
                    column_out_ptr, term, in_bounds, tile != tl.program_id(0), tl.program_id(0), column, cols, AXIS,
                    ROWS, COLS, NEUTRAL_PADDING,
                )  # fmt: skip
            if column_out2_ptr is not None:
                term = column_term2(
                    x, x2, per_row, per_row2, per_column, per_column2, index, tile_column, param0, param1, first, 1.0,
                    first, second, value, count, AXIS, EXP2_BIAS, False, ZERO_MASKED_ROWS, COLS >= 128,
                    ZERO_MASKED_ROWS,
                )  # fmt: skip
                add_to_sums(
                    column_out2_ptr, term, in_bounds, tile != tl.program_id(0), tl.program_id(0), column, cols, AXIS,
                    ROWS, COLS, NEUTRAL_PADDING,
                )  # fmt: skip
    if column_out_ptr is not None:
        if tl.program_id(0) >= outer * tl.cdiv(inner, ROWS):
            zero_stored_sums(column_out_ptr, tl.program_id(0), cols, COLS)
            if column_out2_ptr is not None:
                zero_stored_sums(column_out2_ptr, tl.program_id(0), cols, COLS)
