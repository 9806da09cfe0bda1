"""The parts of a row whose statistics "column_loop" keeps apart: lanes, and the head and tail of an unaligned row."""

import triton
import triton.language as tl

from tridal.kernels.reductions import masked, reduce
from tridal.kernels.tiles import edge_pointers, load_columns, tile_bounds


@triton.jit
def split_lanes(x, LANES: tl.constexpr, VECTOR: tl.constexpr):
    """Returns a tile [1, columns] as [LANES, columns // LANES]: vectors of neighbours go to each lane in turn.

    If a program has LANES threads, a row of the result has the elements that one thread loaded.
    """
    vectors: tl.constexpr = x.shape[1] // (LANES * VECTOR)
    return tl.reshape(tl.permute(tl.reshape(x, [vectors, LANES, VECTOR]), (1, 0, 2)), [LANES, vectors * VECTOR])


@triton.jit
def reduce_lanes(
    x, HOW: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr,
    EXP2_BIAS: tl.constexpr,
):  # fmt: skip
    """Reduces the rows of a tile, or each lane of a tile [LANES, elements].

    A lane's vectors are reduced first, and then their results. Triton 3.7 reduces both at once incorrectly if the
    threads of a lane are not neighbours.
    """
    if LANES == 1:
        return reduce(x, HOW, AXIS, ROWS, 1, EXP2_BIAS)
    else:
        vectors = tl.reshape(x, [x.shape[0], x.shape[1] // VECTOR, VECTOR])
        return tl.max(tl.max(vectors, 2), 1) if HOW == "max" else tl.sum(tl.sum(vectors, 2), 1)


@triton.jit
def merge_lanes(
    first, second, counted, count, param0, param1, rebase: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr
):  # fmt: skip
    """Combines the statistics of all lanes to those of one row."""
    merged = tl.max(first, 0) if FIRST == "max" else tl.sum(first, 0)
    if rebase is not None:
        second = rebase(second, first, merged, counted, count, param0, param1, None)
    row_second = tl.max(second, 0) if SECOND == "max" else tl.sum(second, 0)
    return tl.full([1], merged, first.dtype), tl.full([1], row_second, first.dtype)


@triton.jit
def edge_statistics(
    in_ptr, in2_ptr, per_row, per_row2, per_column_ptr, per_column2_ptr, tile, inner, cols, in_outer, in_inner,
    out_outer, out_inner, misalignment, param0, param1, first_term: tl.constexpr, second_term: tl.constexpr,
    FIRST: tl.constexpr, SECOND: tl.constexpr, PADDING: tl.constexpr, NEUTRAL_PADDING: tl.constexpr,
    ACC_DTYPE: tl.constexpr, EXP2_BIAS: tl.constexpr, INT64_OFFSETS: tl.constexpr, ROWS: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Returns the statistics of the heads and tails of ROWS contiguous rows, and their numbers of elements."""
    block, row, _, _, column, in_bounds = tile_bounds(
        tile, 0, inner, cols, None, misalignment, in_outer, in_inner, INT64_OFFSETS, 1, ROWS, VECTOR, True, VECTOR,
        True,
    )  # fmt: skip
    pointers = edge_pointers(in_ptr, block, row, column, in_outer, in_inner, 1, INT64_OFFSETS, ROWS)
    x = tl.load(pointers, mask=in_bounds, other=PADDING).to(ACC_DTYPE)
    x2 = None
    if in2_ptr is not None:
        pointers = edge_pointers(in2_ptr, block, row, column, out_outer, out_inner, 1, INT64_OFFSETS, ROWS)
        x2 = tl.load(pointers, mask=in_bounds, other=PADDING).to(ACC_DTYPE)
    per_column = load_columns(per_column_ptr, column, cols, False, 0, ROWS, 1, True, ACC_DTYPE)
    per_column2 = load_columns(per_column2_ptr, column, cols, False, 0, ROWS, 1, True, ACC_DTYPE)
    count = tl.sum(in_bounds.to(ACC_DTYPE), 0)
    term = first_term(x, x2, per_row, per_row2, per_column, per_column2, column, param0, param1, 0, EXP2_BIAS)
    first = reduce(masked(term, in_bounds, FIRST, NEUTRAL_PADDING), FIRST, 0, 1, 1, EXP2_BIAS)
    second = tl.zeros_like(first)
    if SECOND is not None:
        term = second_term(
            x, x2, per_row, per_row2, per_column, per_column2, column, param0, param1, first, tl.maximum(count, 1.0),
            in_bounds, 0, EXP2_BIAS, False, True,
        )  # fmt: skip
        second = reduce(masked(term, in_bounds, SECOND, NEUTRAL_PADDING), SECOND, 0, 1, 1, EXP2_BIAS)
    return first, second, count
