"""The stores of a tile: elements, plus those of another tensor if there is one, and numbers per row."""

import triton
import triton.language as tl

from tridal.kernels.tiles import anti_hoist_pointers, row_pointers


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
