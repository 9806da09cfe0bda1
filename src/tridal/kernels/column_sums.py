"""Sums of a term over all rows: outputs with a number per column, for example the gradient of a weight.

A program sums the terms of its own rows in registers. When it ends, it stores one row of partial sums. The caller adds
the rows of partial sums. The order of the additions is fixed, so the result is the same in every run.
"""

import triton
import triton.language as tl


@triton.jit
def zero_sums():
    """Returns the sums of a tile before the first row."""
    if AXIS == 1:
        return tl.zeros([ROWS, COLS], ACC_DTYPE)
    else:
        return tl.zeros([COLS, ROWS], ACC_DTYPE)


@triton.jit
def add_terms(sums, term, in_bounds):
    """Adds the terms of a tile. Columns out of bounds are never stored, so only rows out of bounds need a mask."""
    if NEUTRAL_PADDING or ROWS == 1:
        return sums + term
    else:
        return sums + tl.where(in_bounds, term, 0.0)


@triton.jit
def store_sums(pointer, sums, part, rank, cols):
    """Stores the columns of program `rank` in row `part` of the partial sums."""
    column = rank * COLS + tl.arange(0, COLS)
    tl.store(pointer + tl.cast(part, tl.int64) * cols + column, tl.sum(sums, 1 - AXIS), mask=column < cols)


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
