"""The columns of the largest terms of a row, by repeated maxima."""

import triton
import triton.language as tl


@triton.jit
def ordered(x):
    """Returns numbers that are compared as in a sort: NaN is the largest, and -inf is larger than a missing number."""
    LOWEST: tl.constexpr = -1.7976931348623157e308 if x.dtype == tl.float64 else -3.4028234663852886e38
    return tl.where(x != x, float("inf"), tl.where(x < LOWEST, LOWEST, x))


@triton.jit
def first_of_largest(x, column, AXIS: tl.constexpr):
    """Returns the column of the first one of the largest numbers of each row. -inf is a missing number."""
    largest = x == tl.expand_dims(tl.max(x, AXIS), AXIS)
    return tl.min(tl.where(largest, column, 2147483647), AXIS)


@triton.jit
def without(x, column, at, AXIS: tl.constexpr):
    """Returns x without the number in a column of each row."""
    return tl.where(column == tl.expand_dims(at, AXIS), -float("inf"), x)


@triton.jit
def top_columns(term, column, in_bounds, numbers, TOP: tl.constexpr, AXIS: tl.constexpr):
    """Returns a tile with the columns of the TOP largest terms of each row. `numbers` are those of the tile's columns.

    Of equal terms, the one in the lowest column comes first.
    """
    column = tl.cast(column, tl.int32)
    left = tl.where(in_bounds, ordered(term), -float("inf"))
    at = first_of_largest(left, column, AXIS)
    columns = tl.where(numbers == 0, tl.expand_dims(at, AXIS), 0)
    for number in tl.static_range(1, TOP):
        left = without(left, column, at, AXIS)
        at = first_of_largest(left, column, AXIS)
        columns = tl.where(numbers == number, tl.expand_dims(at, AXIS), columns)
    return columns
