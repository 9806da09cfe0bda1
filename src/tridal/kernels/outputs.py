"""The stores of a tile: elements, plus those of another tensor if there is one, and numbers per row."""

import triton
import triton.language as tl

from tridal.kernels.scale_mask import load_elements
from tridal.kernels.tiles import (
    anti_hoist_pointers,
    edge_pointers,
    index_along,
    load_columns,
    row_pointers,
    tile_bounds,
    tile_pointers,
)


@triton.jit
def store_tile(pointers, y, in_bounds, RELOAD: tl.constexpr):
    """Stores the elements of a tile. With RELOAD, they must not evict elements that will be loaded again."""
    tl.store(pointers, y, mask=in_bounds, eviction_policy="evict_first" if RELOAD else "")


@triton.jit
def plus(
    y, pointer, tile, block, row, column, outer_stride, inner_stride, col_stride, in_bounds,
    INT64_OFFSETS: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    PROGRAMS_PER_ROW: tl.constexpr, ALIGNED: tl.constexpr, ACC_DTYPE: tl.constexpr,
):  # fmt: skip
    """Returns y plus the elements of a tensor with the same strides. Returns y without a tensor."""
    if pointer is None:
        return y
    else:
        pointers = anti_hoist_pointers(
            pointer, tile, block, row, column, outer_stride, inner_stride, col_stride, INT64_OFFSETS, AXIS, ROWS, COLS,
            PROGRAMS_PER_ROW, ALIGNED, 0,
        )  # fmt: skip
        return y + tl.load(pointers, mask=in_bounds, other=0).to(ACC_DTYPE)


@triton.jit
def write_tile(
    out_ptr, out2_ptr, added_ptr, out_pointers, x, x2, per_row, per_row2, per_column, per_column2, index, tile_column,
    param0, param1, part_first, part_scale, first, second, value, count, tile, block, row, column, in_bounds, out_outer,
    out_inner, out_col, finish: tl.constexpr, finish2: tl.constexpr, INT64_OFFSETS: tl.constexpr, AXIS: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, PROGRAMS_PER_ROW: tl.constexpr, SAME_MISALIGNMENT: tl.constexpr,
    RELOAD: tl.constexpr, ACC_DTYPE: tl.constexpr, EXP2_BIAS: tl.constexpr, UNNORMALISED: tl.constexpr,
    GUARD: tl.constexpr, REFINE: tl.constexpr, ZERO_MASKED_ROWS: tl.constexpr,
):  # fmt: skip
    """Stores what the op's functions `finish` and `finish2` compute for the elements of a tile."""
    y = finish(
        x, x2, per_row, per_row2, per_column, per_column2, index, tile_column, param0, param1, part_first, part_scale,
        first, second, value, count, AXIS, EXP2_BIAS, UNNORMALISED, GUARD, REFINE, ZERO_MASKED_ROWS,
    )  # fmt: skip
    y = plus(
        y, added_ptr, tile, block, row, column, out_outer, out_inner, out_col, in_bounds, INT64_OFFSETS, AXIS, ROWS,
        COLS, PROGRAMS_PER_ROW, SAME_MISALIGNMENT, ACC_DTYPE,
    )  # fmt: skip
    store_tile(out_pointers, y.to(out_ptr.dtype.element_ty), in_bounds, RELOAD)
    if out2_ptr is not None:
        out2_pointers = anti_hoist_pointers(
            out2_ptr, tile, block, row, column, out_outer, out_inner, out_col, INT64_OFFSETS, AXIS, ROWS, COLS,
            PROGRAMS_PER_ROW, SAME_MISALIGNMENT, 0,
        )  # fmt: skip
        y2 = finish2(
            x, x2, per_row, per_row2, per_column, per_column2, index, tile_column, param0, param1, part_first,
            part_scale, first, second, value, count, AXIS, EXP2_BIAS, UNNORMALISED, GUARD, REFINE, ZERO_MASKED_ROWS,
        )  # fmt: skip
        tl.store(out2_pointers, y2.to(out2_ptr.dtype.element_ty), mask=in_bounds)


@triton.jit
def write_chunks(
    out_ptr, out2_ptr, in_ptr, in2_ptr, added_ptr, per_column_ptr, per_column2_ptr, mask_ptr, per_row, per_row2, index,
    param0, param1, part_first, part_scale, first, second, value, count, tile, rank, block, row, inner, cols,
    long_blocks, misalignment, in_outer, in_inner, in_col, out_outer, out_inner, out_col, scale, queries, heads,
    mask_batch, mask_head, mask_query, mask_col, finish: tl.constexpr, finish2: tl.constexpr, CHUNKS: tl.constexpr,
    PADDING: tl.constexpr, MASKS_TERMS: tl.constexpr, INT64_OFFSETS: tl.constexpr, COLS: tl.constexpr,
    PROGRAMS_PER_ROW: tl.constexpr, PEEL: tl.constexpr, VECTOR: tl.constexpr, SAME_MISALIGNMENT: tl.constexpr,
    CAUSAL: tl.constexpr, MASK_BYTES: tl.constexpr, ACC_DTYPE: tl.constexpr, EXP2_BIAS: tl.constexpr,
    UNNORMALISED: tl.constexpr, GUARD: tl.constexpr, REFINE: tl.constexpr, ZERO_MASKED_ROWS: tl.constexpr,
):  # fmt: skip
    """`write_tile` for one row, in CHUNKS chunks of COLS columns. Each is loaded again before it is stored."""
    for CHUNK in tl.static_range(0, CHUNKS):
        _, _, column, in_bounds, _, _ = tile_bounds(
            tile, rank * CHUNKS + CHUNK, inner, cols, long_blocks, misalignment, in_outer, in_inner, INT64_OFFSETS, 1,
            1, COLS, PEEL, VECTOR, MASKS_TERMS,
        )  # fmt: skip
        x, x2 = load_elements(
            in_ptr, in2_ptr, block, row, column, in_bounds, inner, in_outer, in_inner, in_col, out_outer, out_inner,
            out_col, scale, mask_ptr, queries, heads, mask_batch, mask_head, mask_query, mask_col, CAUSAL, MASK_BYTES,
            PADDING, INT64_OFFSETS, 1, 1, COLS, PEEL, SAME_MISALIGNMENT, False, ACC_DTYPE,
        )  # fmt: skip
        x2 = x2 if in2_ptr is not None else None
        per_column = load_columns(per_column_ptr, column, cols, INT64_OFFSETS, 1, 1, COLS, PEEL, ACC_DTYPE)
        per_column2 = load_columns(per_column2_ptr, column, cols, INT64_OFFSETS, 1, 1, COLS, PEEL, ACC_DTYPE)
        out_pointers = tile_pointers(
            out_ptr, block, row, column, out_outer, out_inner, out_col, INT64_OFFSETS, 1, 1, COLS, SAME_MISALIGNMENT
        )  # fmt: skip
        tile_column = column + index_along(COLS, 1, INT64_OFFSETS)
        write_tile(
            out_ptr, out2_ptr, added_ptr, out_pointers, x, x2, per_row, per_row2, per_column, per_column2, index,
            tile_column, param0, param1, part_first, part_scale, first, second, value, count, tile, block, row, column,
            in_bounds, out_outer, out_inner, out_col, finish, finish2, INT64_OFFSETS, 1, 1, COLS, PROGRAMS_PER_ROW,
            SAME_MISALIGNMENT, True, ACC_DTYPE, EXP2_BIAS, UNNORMALISED, GUARD, REFINE, ZERO_MASKED_ROWS,
        )  # fmt: skip


@triton.jit
def write_edge(
    out_ptr, out2_ptr, added_ptr, x, x2, per_row, per_row2, per_column, per_column2, index, param0, param1, part_first,
    part_scale, first, second, value, count, tile, block, row, edge_column, in_bounds, out_outer, out_inner, out_col,
    finish: tl.constexpr, finish2: tl.constexpr, INT64_OFFSETS: tl.constexpr, ROWS: tl.constexpr,
    ACC_DTYPE: tl.constexpr, EXP2_BIAS: tl.constexpr, UNNORMALISED: tl.constexpr, GUARD: tl.constexpr,
    REFINE: tl.constexpr, ZERO_MASKED_ROWS: tl.constexpr,
):  # fmt: skip
    """`write_tile` for the heads and tails of a tile's rows."""
    pointers = edge_pointers(out_ptr, block, row, edge_column, out_outer, out_inner, out_col, INT64_OFFSETS, ROWS)
    y = finish(
        x, x2, per_row, per_row2, per_column, per_column2, index, edge_column, param0, param1, part_first, part_scale,
        first, second, value, count, 0, EXP2_BIAS, UNNORMALISED, GUARD, REFINE, ZERO_MASKED_ROWS,
    )  # fmt: skip
    y = plus(
        y, added_ptr, tile, block, row, edge_column, out_outer, out_inner, out_col, in_bounds, INT64_OFFSETS, 0, ROWS,
        1, 1, False, ACC_DTYPE,
    )  # fmt: skip
    tl.store(pointers, y.to(out_ptr.dtype.element_ty), mask=in_bounds)
    if out2_ptr is not None:
        pointers2 = edge_pointers(out2_ptr, block, row, edge_column, out_outer, out_inner, out_col, INT64_OFFSETS, ROWS)
        y2 = finish2(
            x, x2, per_row, per_row2, per_column, per_column2, index, edge_column, param0, param1, part_first,
            part_scale, first, second, value, count, 0, EXP2_BIAS, UNNORMALISED, GUARD, REFINE, ZERO_MASKED_ROWS,
        )  # fmt: skip
        tl.store(pointers2, y2.to(out2_ptr.dtype.element_ty), mask=in_bounds)


@triton.jit
def write_rows(
    pointer, function: tl.constexpr, per_row, per_row2, index, picked, picked_column, param0, param1, first, second,
    value, count, tile, rank, inner, long_blocks, row_outer, row_inner, ROWS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Stores what an op's function computes for each row of a tile. Does nothing without a tensor.

    Rank 0 of the programs of a row stores it.
    """
    if pointer is not None:
        number = function(
            per_row, per_row2, index, picked, picked_column, param0, param1, first, second, value, count
        )  # fmt: skip
        pointers, in_bounds = row_pointers(pointer, tile, inner, long_blocks, row_outer, row_inner, ROWS, VECTOR)
        tl.store(pointers, number.to(pointer.dtype.element_ty), mask=in_bounds & (rank == 0))
