"""The schedules "whole_row" and "cooperative": a tile holds whole rows, or the part of a row that one program computes.

Memory is read and written once. A tensor is `outer` blocks of `inner` rows of `cols` elements. Strides are in elements.

The op is given by its tensors, by its functions (`first_term` to `column_term2`), and by the reductions of the terms,
FIRST and SECOND; `tridal.runtime` describes them in row_kernel.py and op_functions.py. An absent tensor or function is
None. Tensors `out`, `out2`, `in`, `in2` and `added` have a number per element, `per_row` and `row_out` per row, and
`per_column` and `column_out` per column. All are contiguous but `in`, and `out` of a kernel that reads and writes one
tensor per element. A plan chooses the rest:
  PROGRAMS_PER_ROW  above 1, programs compute a row together ("cooperative") and exchange their statistics.
  PERSISTENT        programs loop over tiles, so any number of them computes the same result. If not, a program computes
                    one tile, or its part of one, with fewer registers.
  PEEL              the unaligned head and tail of a row, fewer than VECTOR elements each, are a small extra tile.
                    `misalignment`: elements from a vector boundary to the first row; SAME_MISALIGNMENT: in all tensors.
  RELOAD            each pass over a tile loads its elements again, from the core's cache, to save registers.
  STAGES            number of tiles in flight in the loop.
The source uses only features of Triton 3.2.
"""

import triton
import triton.language as tl

from tridal.kernels.column_sums import add_terms, store_sums, zero_sums
from tridal.kernels.exchange import body_length, clear_slots, collect, exchange_once, part_count, publish
from tridal.kernels.outputs import write_chunks, write_edge, write_rows, write_tile
from tridal.kernels.reductions import first_statistic, merge, second_statistic
from tridal.kernels.scale_mask import scale_mask
from tridal.kernels.tile_counter import await_claim, claim, iterations, read_claim, release_group
from tridal.kernels.tiles import (
    anti_hoist_pointers,
    edge_pointers,
    index_along,
    load_all_columns,
    load_index,
    load_rows,
    load_tile,
    tile_bounds,
)


@triton.jit
def whole_row(
    out_ptr, out2_ptr, row_out_ptr, row_out2_ptr, column_out_ptr, column_out2_ptr, in_ptr, in2_ptr, added_ptr,
    per_row_ptr, per_row2_ptr, index_ptr, per_column_ptr, per_column2_ptr, mask_ptr, workspace, outer, inner, cols,
    long_blocks, in_outer, in_inner, in_col, out_outer, out_inner, out_col, row_outer, row_inner, misalignment, param0,
    param1, scale, queries, heads, mask_batch, mask_head, mask_query, mask_col,
    first_term: tl.constexpr, second_term: tl.constexpr, rebase: tl.constexpr, row_value: tl.constexpr,
    finish: tl.constexpr, finish2: tl.constexpr, row_write: tl.constexpr, row_write2: tl.constexpr,
    column_term: tl.constexpr, column_term2: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
    COUNTS: tl.constexpr, PICKS: tl.constexpr, PICKS_COLUMN: tl.constexpr, PADDING: tl.constexpr,
    NEUTRAL_PADDING: tl.constexpr, MASKS_TERMS: tl.constexpr, ACC_DTYPE: tl.constexpr, EXP2_BIAS: tl.constexpr,
    INT64_OFFSETS: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, PERSISTENT: tl.constexpr,
    STAGES: tl.constexpr, PROGRAMS_PER_ROW: tl.constexpr, SPLIT_POW2: tl.constexpr, SLOTS: tl.constexpr,
    PEEL: tl.constexpr, VECTOR: tl.constexpr, SAME_MISALIGNMENT: tl.constexpr, RELOAD: tl.constexpr,
    CAUSAL: tl.constexpr, ZERO_MASKED_ROWS: tl.constexpr, MASK_BYTES: tl.constexpr, OP_HASH: tl.constexpr,
):  # fmt: skip
    """Computes the statistics of each row, then calls the op's function `finish` for every element."""
    tiles = outer * tl.cdiv(inner, ROWS)
    # Sums over rows are the same in every run only if each program always computes the same rows.
    EXCHANGE: tl.constexpr = PROGRAMS_PER_ROW > 1 and FIRST is not None
    DYNAMIC: tl.constexpr = ((EXCHANGE and PERSISTENT) and STAGES == 1) and (column_out_ptr is None)
    UNNORMALISED: tl.constexpr = PROGRAMS_PER_ROW == 1 and AXIS == 1  # AXIS 0 would take two registers per row
    GUARD: tl.constexpr = EXCHANGE or ZERO_MASKED_ROWS  # a part may be all -inf
    REFINE: tl.constexpr = COLS >= 128
    SECOND_PASS: tl.constexpr = -1 if SECOND is None else (0 if rebase is None else 1)
    STATISTICS_PASS: tl.constexpr = 1 if SECOND_PASS == 1 else 0
    LAST_PASS: tl.constexpr = 0 if FIRST is None else STATISTICS_PASS + 1
    # Numbers per column need as many registers as a row of elements, unless outputs are computed in chunks of a row.
    CHUNKABLE: tl.constexpr = ((RELOAD and ROWS == 1) and (AXIS == 1 and column_out_ptr is None)) and COLS >= 4
    CHUNKS: tl.constexpr = 4 if (CHUNKABLE and LAST_PASS > 0) and per_column_ptr is not None else 1
    rank, group, groups, begin, end, step = iterations(tiles, PROGRAMS_PER_ROW, PERSISTENT, DYNAMIC)
    claimed, last = group, -1
    SAME_COLUMNS: tl.constexpr = PERSISTENT and (not PEEL or (long_blocks is not None and not DYNAMIC))
    LOAD_ONCE: tl.constexpr = (SAME_COLUMNS and not RELOAD) and (per_column_ptr is not None)
    if LOAD_ONCE:  # all tiles of a program have the same columns
        _, _, column, _, edge_column, _ = tile_bounds(
            group, rank, inner, cols, long_blocks, misalignment, in_outer, in_inner, INT64_OFFSETS, AXIS, ROWS, COLS,
            PEEL, VECTOR, False,
        )  # fmt: skip
        per_column, per_column2, per_column_edge, per_column2_edge = load_all_columns(
            per_column_ptr, per_column2_ptr, column, edge_column, cols, INT64_OFFSETS, AXIS, ROWS, COLS, PEEL,
            ACC_DTYPE,
        )  # fmt: skip
    sums = zero_sums(column_out_ptr, AXIS, ROWS, COLS, ACC_DTYPE)
    sums2 = zero_sums(column_out2_ptr, AXIS, ROWS, COLS, ACC_DTYPE)
    edge_sums = zero_sums(column_out_ptr if PEEL else None, 0, ROWS, 2 * VECTOR, ACC_DTYPE)
    edge_sums2 = zero_sums(column_out2_ptr if PEEL else None, 0, ROWS, 2 * VECTOR, ACC_DTYPE)
    for iteration in tl.range(begin, end, step, num_stages=STAGES):
        tile = claimed if DYNAMIC else iteration
        if not DYNAMIC or tile < tiles:
            block, row, column, in_bounds, edge_column, edge_in_bounds = tile_bounds(
                tile, rank, inner, cols, long_blocks, misalignment, in_outer, in_inner, INT64_OFFSETS, AXIS, ROWS, COLS,
                PEEL, VECTOR, MASKS_TERMS,
            )  # fmt: skip
            body, count = cols, tl.cast(cols, ACC_DTYPE)
            if COUNTS and EXCHANGE:
                body = body_length(block, row, cols, misalignment, in_outer, in_inner, PEEL, VECTOR)
                count = part_count(rank, body, cols, COLS)
            per_row = load_rows(per_row_ptr, tile, inner, long_blocks, row_outer, row_inner, ROWS, VECTOR, ACC_DTYPE)
            index, picked, picked_column = load_index(
                index_ptr, in_ptr, per_column_ptr, tile, inner, cols, long_blocks, row_outer, row_inner, in_outer,
                in_inner, in_col, INT64_OFFSETS, ROWS, VECTOR, ACC_DTYPE, PICKS, PICKS_COLUMN,
            )  # fmt: skip
            per_row2 = load_rows(per_row2_ptr, tile, inner, long_blocks, row_outer, row_inner, ROWS, VECTOR, ACC_DTYPE)
            for PASS in tl.static_range(0, LAST_PASS + 1):
                if not LOAD_ONCE and not (CHUNKS > 1 and PASS == LAST_PASS):
                    per_column, per_column2, per_column_edge, per_column2_edge = load_all_columns(
                        per_column_ptr, per_column2_ptr, column, edge_column, cols, INT64_OFFSETS, AXIS, ROWS, COLS,
                        PEEL, ACC_DTYPE,
                    )  # fmt: skip
                if PASS == 0 or (RELOAD and not (CHUNKS > 1 and PASS == LAST_PASS)):
                    pointers = anti_hoist_pointers(
                        in_ptr, tile, block, row, column, in_outer, in_inner, in_col, INT64_OFFSETS, AXIS, ROWS, COLS,
                        PROGRAMS_PER_ROW, PEEL, PASS,
                    )  # fmt: skip
                    if in2_ptr is not None:
                        pointers2 = anti_hoist_pointers(
                            in2_ptr, tile, block, row, column, out_outer, out_inner, out_col, INT64_OFFSETS, AXIS, ROWS,
                            COLS, PROGRAMS_PER_ROW, SAME_MISALIGNMENT, PASS,
                        )  # fmt: skip
                    loaded = load_tile(pointers, in_bounds, PADDING, RELOAD, PASS == 0, PASS == LAST_PASS)
                    if in2_ptr is not None:
                        loaded2 = load_tile(pointers2, in_bounds, PADDING, RELOAD, PASS == 0, PASS == LAST_PASS)
                    x = loaded.to(ACC_DTYPE)
                    x2 = None
                    if in2_ptr is not None:
                        x2 = loaded2.to(ACC_DTYPE)
                    x = scale_mask(
                        x, in_bounds, block, row, column, inner, scale, mask_ptr, queries, heads, mask_batch, mask_head,
                        mask_query, mask_col, CAUSAL, MASK_BYTES, INT64_OFFSETS, AXIS, ROWS, COLS,
                    )  # fmt: skip
                if PASS == 0:
                    first, second = 0.0, 0.0
                    if FIRST is not None:
                        first = first_statistic(
                            x, x2, in_bounds, per_row, per_row2, per_column, per_column2,
                            column + index_along(COLS, AXIS, INT64_OFFSETS), param0, param1, first_term, FIRST,
                            NEUTRAL_PADDING, AXIS, ROWS, COLS, EXP2_BIAS,
                        )  # fmt: skip
                        second = tl.zeros_like(first)
                    if PEEL:
                        pointers = edge_pointers(
                            in_ptr, block, row, edge_column, in_outer, in_inner, in_col, INT64_OFFSETS, ROWS
                        )  # fmt: skip
                        if in2_ptr is not None:
                            pointers2 = edge_pointers(
                                in2_ptr, block, row, edge_column, out_outer, out_inner, out_col, INT64_OFFSETS, ROWS
                            )  # fmt: skip
                        x_edge = tl.load(pointers, mask=edge_in_bounds, other=PADDING).to(ACC_DTYPE)
                        x2_edge = None
                        x_edge = scale_mask(
                            x_edge, edge_in_bounds, block, row, edge_column, inner, scale, mask_ptr, queries, heads,
                            mask_batch, mask_head, mask_query, mask_col, CAUSAL, 1, INT64_OFFSETS, 0, ROWS, 1,
                        )  # fmt: skip
                        if in2_ptr is not None:
                            x2_edge = tl.load(pointers2, mask=edge_in_bounds, other=PADDING).to(ACC_DTYPE)
                        if FIRST is not None:
                            edge_first = first_statistic(
                                x_edge, x2_edge, edge_in_bounds, per_row, per_row2, per_column_edge, per_column2_edge,
                                edge_column, param0, param1, first_term, FIRST, NEUTRAL_PADDING, 0, 1, 1, EXP2_BIAS,
                            )  # fmt: skip
                            first = merge(first, edge_first, FIRST)
                if PASS == SECOND_PASS:
                    second = second_statistic(
                        x, x2, in_bounds, per_row, per_row2, per_column, per_column2,
                        column + index_along(COLS, AXIS, INT64_OFFSETS), param0, param1, first, count, second_term,
                        SECOND, NEUTRAL_PADDING, AXIS, ROWS, COLS, EXP2_BIAS, UNNORMALISED, GUARD,
                    )  # fmt: skip
                    if PEEL:
                        edge_second = second_statistic(
                            x_edge, x2_edge, edge_in_bounds, per_row, per_row2, per_column_edge, per_column2_edge,
                            edge_column, param0, param1, first, count, second_term, SECOND, NEUTRAL_PADDING, 0, 1, 1,
                            EXP2_BIAS,
                            UNNORMALISED, GUARD,
                        )  # fmt: skip
                        second = merge(second, edge_second, SECOND)
                if PASS == STATISTICS_PASS:
                    part_first, part_scale = first, 1.0
                    if EXCHANGE and PERSISTENT:
                        publish(workspace, tile, rank, first, second, ROWS, COLS, SLOTS)
                        if DYNAMIC:  # here, because no elements are in registers, and programs wait for each other
                            claim(workspace, tiles, group, rank, iteration, end, SLOTS)
                        first, second, part_scale = collect(
                            workspace, tile, rank, first, body, cols, param0, param1, rebase, FIRST, SECOND,
                            PROGRAMS_PER_ROW, SPLIT_POW2, ROWS, COLS, SLOTS, COUNTS, EXP2_BIAS,
                        )  # fmt: skip
                    elif EXCHANGE:
                        first, second, part_scale = exchange_once(
                            workspace, tile, rank, first, second, body, cols, param0, param1, rebase, FIRST, SECOND,
                            PROGRAMS_PER_ROW, SPLIT_POW2, COLS, SLOTS, COUNTS, EXP2_BIAS,
                        )  # fmt: skip
                    if DYNAMIC:
                        published = read_claim(workspace, tiles, group, iteration, SLOTS)
                    count = tl.cast(cols, ACC_DTYPE)
                    value = None  # Triton 3.3 has no None in tuples
                    if row_value is not None:
                        value = row_value(
                            per_row, per_row2, index, picked, picked_column, param0, param1, part_scale, first, second,
                            count, EXP2_BIAS, REFINE, ZERO_MASKED_ROWS,
                        )  # fmt: skip
                    write_rows(
                        row_out_ptr, row_write, per_row, per_row2, index, picked, picked_column, param0, param1,
                        first, second, value, count, tile, rank, inner, long_blocks, row_outer, row_inner, ROWS, VECTOR,
                    )  # fmt: skip
                    write_rows(
                        row_out2_ptr, row_write2, per_row, per_row2, index, picked, picked_column, param0, param1,
                        first, second, value, count, tile, rank, inner, long_blocks, row_outer, row_inner, ROWS, VECTOR,
                    )  # fmt: skip
                    if out_ptr is not None:
                        out_pointers = anti_hoist_pointers(
                            out_ptr, tile, block, row, column, out_outer, out_inner, out_col, INT64_OFFSETS, AXIS, ROWS,
                            COLS, PROGRAMS_PER_ROW, SAME_MISALIGNMENT, 0,
                        )  # fmt: skip
                if PASS == LAST_PASS:
                    tile_column = column + index_along(COLS, AXIS, INT64_OFFSETS)
                    if out_ptr is not None:
                        if CHUNKS > 1:
                            write_chunks(
                                out_ptr, out2_ptr, in_ptr, in2_ptr, added_ptr, per_column_ptr, per_column2_ptr,
                                mask_ptr, per_row, per_row2, index, param0, param1, part_first, part_scale, first,
                                second, value, count, tile, rank, block, row, inner, cols, long_blocks, misalignment,
                                in_outer, in_inner, in_col, out_outer, out_inner, out_col, scale, queries, heads,
                                mask_batch, mask_head, mask_query, mask_col, finish, finish2, CHUNKS, PADDING,
                                MASKS_TERMS, INT64_OFFSETS, COLS // CHUNKS, PROGRAMS_PER_ROW, PEEL, VECTOR,
                                SAME_MISALIGNMENT, CAUSAL, MASK_BYTES, ACC_DTYPE, EXP2_BIAS, UNNORMALISED, GUARD,
                                REFINE, ZERO_MASKED_ROWS,
                            )  # fmt: skip
                        else:
                            write_tile(
                                out_ptr, out2_ptr, added_ptr, out_pointers, x, x2, per_row, per_row2, per_column,
                                per_column2, index, tile_column, param0, param1, part_first, part_scale, first, second,
                                value, count, tile, block, row, column, in_bounds, out_outer, out_inner, out_col,
                                finish, finish2, INT64_OFFSETS, AXIS, ROWS, COLS, PROGRAMS_PER_ROW, SAME_MISALIGNMENT,
                                RELOAD, ACC_DTYPE, EXP2_BIAS, UNNORMALISED, GUARD, REFINE, ZERO_MASKED_ROWS,
                            )  # fmt: skip
                        if PEEL:
                            write_edge(
                                out_ptr, out2_ptr, added_ptr, x_edge, x2_edge, per_row, per_row2, per_column_edge,
                                per_column2_edge, index, param0, param1, part_first, part_scale, first, second, value,
                                count, tile, block, row, edge_column, edge_in_bounds, out_outer, out_inner, out_col,
                                finish, finish2, INT64_OFFSETS, ROWS, ACC_DTYPE, EXP2_BIAS, UNNORMALISED, GUARD, REFINE,
                                ZERO_MASKED_ROWS,
                            )  # fmt: skip
                    if column_out_ptr is not None:
                        sums = add_terms(
                            sums, x, x2, per_row, per_row2, per_column, per_column2, index, tile_column, param0,
                            param1, part_first, part_scale, first, second, value, count, in_bounds, column_term, AXIS,
                            ROWS, PEEL, NEUTRAL_PADDING, EXP2_BIAS, UNNORMALISED, GUARD, REFINE, ZERO_MASKED_ROWS,
                        )  # fmt: skip
                        if PEEL:
                            edge_sums = add_terms(
                                edge_sums, x_edge, x2_edge, per_row, per_row2, per_column_edge, per_column2_edge,
                                index, edge_column, param0, param1, part_first, part_scale, first, second, value, count,
                                edge_in_bounds, column_term, 0, ROWS, PEEL, NEUTRAL_PADDING, EXP2_BIAS, UNNORMALISED,
                                GUARD, REFINE, ZERO_MASKED_ROWS,
                            )  # fmt: skip
                    if column_out2_ptr is not None:
                        sums2 = add_terms(
                            sums2, x, x2, per_row, per_row2, per_column, per_column2, index, tile_column, param0,
                            param1, part_first, part_scale, first, second, value, count, in_bounds, column_term2, AXIS,
                            ROWS, PEEL, NEUTRAL_PADDING, EXP2_BIAS, UNNORMALISED, GUARD, REFINE, ZERO_MASKED_ROWS,
                        )  # fmt: skip
                        if PEEL:
                            edge_sums2 = add_terms(
                                edge_sums2, x_edge, x2_edge, per_row, per_row2, per_column_edge, per_column2_edge,
                                index, edge_column, param0, param1, part_first, part_scale, first, second, value, count,
                                edge_in_bounds, column_term2, 0, ROWS, PEEL, NEUTRAL_PADDING, EXP2_BIAS, UNNORMALISED,
                                GUARD, REFINE, ZERO_MASKED_ROWS,
                            )  # fmt: skip
            if EXCHANGE and PERSISTENT:
                clear_slots(workspace, last if DYNAMIC else tile - groups, rank, PROGRAMS_PER_ROW, ROWS, SLOTS)
            if DYNAMIC:
                last = tile
                claimed = await_claim(published, workspace, tiles, group, groups, iteration, end, tile, SLOTS)
    if EXCHANGE and PERSISTENT:
        last = last if DYNAMIC else end - 1 - (end - 1 - begin) % step
        release_group(workspace, last, None, tiles, group, groups, PROGRAMS_PER_ROW, SPLIT_POW2, ROWS, SLOTS)
    if column_out_ptr is not None:
        store_sums(
            column_out_ptr, sums, edge_sums, group, rank, cols, misalignment, in_outer, AXIS, ROWS, COLS, PEEL, VECTOR
        )
    if column_out2_ptr is not None:
        store_sums(
            column_out2_ptr, sums2, edge_sums2, group, rank, cols, misalignment, in_outer, AXIS, ROWS, COLS, PEEL,
            VECTOR,
        )  # fmt: skip
