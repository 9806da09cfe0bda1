"""The schedules "whole_row" and "cooperative": a tile holds whole rows, or the part of a row that one program computes.

Memory is read and written once. A tensor is `outer` blocks of `inner` rows of `cols` elements. Strides are in elements.
A tensor with a number per element has those of the first one (`in_...`), or another group. Others are contiguous.

The source is a template. It is loaded once for each kernel (`tridal.runtime.instance`):
  each_...    stands for the kernel's tensors of a kind, or for the calls of the op's functions. A statement with such a
              name is repeated for each of them, and does nothing if there is none.
  each_early, each_late, each_later   stand for the statistics after the first one: those whose terms do not use it,
              those whose terms use it, and both.
  CAPITALS    are constants: the fields of `KernelConfig`, and what `tridal.runtime.op_functions` derives from the op.
  parameters  of the schedule that this kernel does not need are constants, too: an absent tensor is None.

A plan chooses:
  PROGRAMS_PER_ROW  above 1, programs compute a row together ("cooperative") and exchange their statistics.
  PERSISTENT        programs loop over tiles, so any number of them computes the same result. If not, a program computes
                    one tile, or its part of one, with fewer registers.
  PEEL              the unaligned head and tail of a row, fewer than VECTOR elements each, are a small extra tile.
                    `misalignment`: elements from a vector boundary to the first row; SAME_MISALIGNMENT: in all tensors.
  RELOAD            each pass over a tile loads its elements again, from the core's cache, to save registers. The small
                    extra tile stays in registers.
  NUM_STAGES        number of tiles in flight in the loop.
The source uses only features of Triton 3.2.
"""

import triton
import triton.language as tl

from tridal.kernels.column_sums import add_terms, store_sums, zero_sums
from tridal.kernels.exchange import (
    after_picked,
    body_length,
    clear_slots,
    collect,
    part_count,
    publish,
)
from tridal.kernels.reductions import merge, statistic
from tridal.kernels.scale_mask import scale_mask
from tridal.kernels.tile_counter import await_claim, claim, iterations, read_claim, release_group
from tridal.kernels.tiles import (
    anti_hoist_pointers,
    edge_pointers,
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

EXCHANGE = PROGRAMS_PER_ROW > 1 and FIRST is not None
# Sums over rows are the same in every run only if each program always computes the same rows. Claims have 32 bits.
DYNAMIC = EXCHANGE and PERSISTENT and NUM_STAGES == 1 and not HAS_SUMS and not INT64_TILES
UNNORMALISED = PROGRAMS_PER_ROW == 1 and AXIS == 1  # AXIS 0 would take two registers per row
GUARD = TERM_GUARD = EXCHANGE or ZERO_MASKED_ROWS  # a part may be all -inf
REFINE = COLS >= 128
# The passes over a tile: the statistics that need no other one, those that need the first one, and the outputs.
STATISTICS_PASS = 1 if HAS_LATE else 0
LAST_PASS = 0 if FIRST is None else STATISTICS_PASS + 1
# Numbers per column need as many registers as a row of elements, unless outputs are computed in chunks of a row.
CHUNKABLE = RELOAD and ROWS == 1 and AXIS == 1 and not HAS_SUMS and COLS >= 4
CHUNKS = 4 if CHUNKABLE and LAST_PASS > 0 and HAS_COLUMNS and HAS_RESULTS else 1
LOAD_ONCE = PERSISTENT and not PEEL and not RELOAD and HAS_COLUMNS


@triton.jit
def whole_row(
    each_pointer, score_mask, workspace, outer, inner, cols, each_group_stride, row_outer, row_inner,
    misalignment, each_parameter, scale, queries, heads, mask_batch, mask_head, mask_query, mask_col,
):  # fmt: skip
    """Computes the statistics of each row, then calls the op's functions for every element."""
    tiles = outer * tl.cdiv(inner, ROWS)
    rank, group, groups, begin, end, step = iterations(tiles, DYNAMIC)
    claimed, last = group, -1
    if LOAD_ONCE:  # all tiles of a program have the same columns
        _, _, column, _, _, _ = tile_bounds(group, rank, inner, cols, misalignment, in_outer, in_inner, COLS)
        each_column = load_columns(each_column_ptr, column, cols, AXIS, COLS)
    each_sums = zero_sums()
    for iteration in tl.range(begin, end, step, num_stages=NUM_STAGES):
        tile = claimed if DYNAMIC else iteration
        if not DYNAMIC or tile < tiles:
            block, row, column, in_bounds, edge_column, edge_in_bounds = tile_bounds(
                tile, rank, inner, cols, misalignment, in_outer, in_inner, COLS
            )  # fmt: skip
            body, count = cols, tl.cast(cols, ACC_DTYPE)
            if COUNTS and EXCHANGE:
                body = body_length(block, row, cols, misalignment, in_outer, in_inner)
                count = part_count(rank, body, cols, COLS)
                if PEEL and not MASKS_TERMS:
                    count = tl.maximum(count, 1.0)  # a part may have no elements
            each_row = load_rows(each_row_ptr, tile, inner, row_outer, row_inner)
            picked = 0.0
            index, picked, picked_column = load_index(
                each_indexed, tile, inner, cols, row_outer, row_inner, in_outer, in_inner, in_col
            )  # fmt: skip
            for PASS in tl.static_range(0, LAST_PASS + 1):
                if not LOAD_ONCE and not (CHUNKS > 1 and PASS == LAST_PASS):
                    each_column = load_columns(each_column_ptr, column, cols, AXIS, COLS)
                    if PEEL:
                        each_edge_column = load_columns(each_column_ptr, edge_column, cols, 0, 1)
                if PASS == 0 or (RELOAD and not (CHUNKS > 1 and PASS == LAST_PASS)):
                    each_at = anti_hoist_pointers(
                        each_element_ptr, tile, block, row, column, each_strides, AXIS, COLS, each_aligned, PASS
                    )  # fmt: skip
                    each_loaded = load_tile(each_at, in_bounds, PASS == 0, PASS == LAST_PASS)
                    each_element = each_loaded.to(ACC_DTYPE)
                    each_score = scale_mask(
                        each_score, in_bounds, block, row, column, inner, scale, score_mask, queries, heads, mask_batch,
                        mask_head, mask_query, mask_col, MASK_BYTES, AXIS, COLS,
                    )  # fmt: skip
                if PASS == 0:
                    tile_column = column + index_along(COLS, AXIS, INT64_OFFSETS)
                    each_first = statistic(each_first_term, in_bounds, FIRST, AXIS, COLS)
                    if PEEL:
                        each_edge_at = edge_pointers(each_element_ptr, block, row, edge_column, each_strides)
                        each_edge = tl.load(each_edge_at, mask=edge_in_bounds, other=PADDING).to(ACC_DTYPE)
                        each_edge_score = scale_mask(
                            each_edge_score, edge_in_bounds, block, row, edge_column, inner, scale, score_mask, queries,
                            heads, mask_batch, mask_head, mask_query, mask_col, 1, 0, 1,
                        )  # fmt: skip
                        each_first = merge(first, statistic(each_edge_first_term, edge_in_bounds, FIRST, 0, 1), FIRST)
                    each_early = statistic(each_early_term, in_bounds, each_early_reduce, AXIS, COLS)
                    if PEEL:
                        each_edge_early = statistic(each_edge_early_term, edge_in_bounds, each_early_reduce, 0, 1)
                        each_early = merge(each_early, each_edge_early, each_early_reduce)
                if PASS == 1 and HAS_LATE:
                    each_late = statistic(each_late_term, in_bounds, each_late_reduce, AXIS, COLS)
                    if PEEL:
                        each_edge_late = statistic(each_edge_late_term, edge_in_bounds, each_late_reduce, 0, 1)
                        each_late = merge(each_late, each_edge_late, each_late_reduce)
                if PASS == STATISTICS_PASS:
                    part_scale = 1.0
                    each_part_first = first
                    if EXCHANGE:
                        if SECOND is None:
                            second = tl.zeros_like(first)
                        published = first
                        if PICKS and HAS_RESULTS:
                            published = after_picked(first, picked, cols)
                        publish(workspace, tile, rank, published, second)
                        if DYNAMIC:  # here, because the programs wait for each other anyway
                            claim(workspace, tiles, group, rank, iteration, end)
                        first, second, part_scale = collect(workspace, tile, rank, first, body, cols, *each_parameter)
                    if DYNAMIC:
                        next_claim = read_claim(workspace, tiles, group, iteration)
                    count = tl.cast(cols, ACC_DTYPE)
                    value = each_value
                    store_rows(each_row_result, each_row_formula, tile, rank, inner, row_outer, row_inner)
                    each_result_at = anti_hoist_pointers(
                        each_result, tile, block, row, column, each_result_strides, AXIS, COLS, SAME_MISALIGNMENT, 0
                    )  # fmt: skip
                if PASS == LAST_PASS:
                    for CHUNK in tl.static_range(0, CHUNKS):
                        if CHUNKS > 1:
                            _, _, column, in_bounds, _, _ = tile_bounds(
                                tile, rank * CHUNKS + CHUNK, inner, cols, misalignment, in_outer, in_inner,
                                COLS // CHUNKS,
                            )  # fmt: skip
                            each_at = tile_pointers(
                                each_element_ptr, block, row, column, each_strides, AXIS, COLS // CHUNKS, each_aligned
                            )  # fmt: skip
                            each_element = load_tile(each_at, in_bounds, False, True).to(ACC_DTYPE)
                            each_score = scale_mask(
                                each_score, in_bounds, block, row, column, inner, scale, score_mask, queries, heads,
                                mask_batch, mask_head, mask_query, mask_col, MASK_BYTES, AXIS, COLS // CHUNKS,
                            )  # fmt: skip
                            each_column = load_columns(each_column_ptr, column, cols, AXIS, COLS // CHUNKS)
                            each_result_at = tile_pointers(
                                each_result, block, row, column, each_result_strides, AXIS, COLS // CHUNKS,
                                SAME_MISALIGNMENT,
                            )  # fmt: skip
                        tile_column = column + index_along(COLS // CHUNKS, AXIS, INT64_OFFSETS)
                        store_tile(
                            each_formula, each_result_at, each_addend, tile, block, row, column, each_addend_strides,
                            in_bounds, AXIS, COLS // CHUNKS, SAME_MISALIGNMENT, each_streamed,
                        )  # fmt: skip
                    if PEEL:
                        each_edge_result_at = edge_pointers(each_result, block, row, edge_column, each_result_strides)
                        store_tile(
                            each_edge_formula, each_edge_result_at, each_addend, tile, block, row, edge_column,
                            each_addend_strides, edge_in_bounds, 0, 1, False, False,
                        )  # fmt: skip
                    each_sums = add_terms(each_sums, each_sum_term, in_bounds)
            if EXCHANGE and PERSISTENT:
                clear_slots(workspace, last if DYNAMIC else tile - groups, rank)
            if DYNAMIC:
                last = tile
                claimed = await_claim(next_claim, workspace, tiles, group, groups, iteration, end, tile)
    if EXCHANGE:
        last = last if DYNAMIC else end - 1 - (end - 1 - begin) % step
        release_group(workspace, last, tiles, group, groups, DYNAMIC)
    store_sums(each_sums_result, each_sums, group, rank, cols)
