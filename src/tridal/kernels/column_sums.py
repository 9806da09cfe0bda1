"""Sums of a term over all rows: outputs with a number per column, for example the gradient of a weight.

A program sums the terms of its own rows in registers. When it ends, it stores one row of partial sums. The caller adds
the rows of partial sums. The order of the additions is fixed, so the result is the same in every run.
"""

import triton
import triton.language as tl

from tridal.kernels.tiles import head_length


@triton.jit
def zero_sums(AXIS: tl.constexpr, COLS: tl.constexpr):
    """Returns the sums of a tile before the first row."""
    if AXIS == 1:
        return tl.zeros([ROWS, COLS], ACC_DTYPE)
    else:
        return tl.zeros([COLS, ROWS], ACC_DTYPE)


@triton.jit
def add_terms(sums, term, in_bounds):
    """Adds the terms of a tile. Columns out of bounds are never stored, so only rows out of bounds need a mask."""
    if NEUTRAL_PADDING or not (ROWS > 1 or PEEL):
        return sums + term
    else:
        return sums + tl.where(in_bounds, term, 0.0)


@triton.jit
def store_sums(pointer, sums, edge_sums, part, rank, cols, misalignment, outer_stride):
    """Stores row `part` of the partial sums. Rank 0 stores the columns of the heads and tails as well."""
    row = pointer + tl.cast(part, tl.int64) * cols
    head, end = 0, cols
    if PEEL:
        head = head_length(misalignment + tl.cast(part % VECTOR, tl.int64) * outer_stride, cols)
        end = head + (cols - head) // VECTOR * VECTOR
        edge = tl.arange(0, 2 * VECTOR)
        edge_column = tl.where(edge < VECTOR, edge, end + edge - VECTOR)
        edge_in_bounds = (edge_column < tl.where(edge < VECTOR, head, cols)) & (rank == 0)
        tl.store(row + edge_column, tl.sum(edge_sums, 1), mask=edge_in_bounds)
    column = head + rank * COLS + tl.arange(0, COLS)
    tl.store(row + column, tl.sum(sums, 1 - AXIS), mask=column < end)


@triton.jit
def add_to_sums(pointer, term, in_bounds, follows, part, column, cols):
    """Adds the terms of one block of columns to row `part` of the partial sums. Unless `follows`, replaces them."""
    index = column + tl.arange(0, COLS)
    pointers = pointer + tl.cast(part, tl.int64) * cols + index
    before = tl.load(pointers, mask=(index < cols) & follows, other=0.0)
    term = term if NEUTRAL_PADDING or ROWS == 1 else tl.where(in_bounds, term, 0.0)
    tl.store(pointers, before + tl.sum(term, 1 - AXIS), mask=index < cols)


@triton.jit
def zero_stored_sums(pointer, part, cols):
    """Sets row `part` of the partial sums to zero, for a program that has no tile."""
    for column in tl.range(0, cols, COLS):
        index = column + tl.arange(0, COLS)
        zeros = tl.zeros([COLS], pointer.dtype.element_ty)
        tl.store(pointer + tl.cast(part, tl.int64) * cols + index, zeros, mask=index < cols)
