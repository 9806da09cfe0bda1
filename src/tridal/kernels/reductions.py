"""The reductions that make a statistic: "max", "sum", and "accurate_sum", a sum that rounds less often."""

import triton
import triton.language as tl

_INF = tl.constexpr(float("inf"))


@triton.jit
def reduce(
    x, HOW: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, EXP2_BIAS: tl.constexpr
):  # fmt: skip
    """Reduces the rows of a tile. An accurate sum adds four neighbours first, which shortens the chain of roundings."""
    if HOW == "max":
        return tl.max(x, AXIS)
    else:
        if (HOW == "accurate_sum" and EXP2_BIAS is not None) and EXP2_BIAS != 0:
            if (AXIS == 1) and (COLS >= 2048):
                x = tl.sum(tl.reshape(x, [ROWS, COLS // 4, 4]), 2)
        return tl.sum(x, AXIS)


@triton.jit
def merge(a, b, HOW: tl.constexpr):
    """Combines the results of two reductions."""
    if HOW == "max":
        return tl.maximum(a, b)
    else:
        return a + b


@triton.jit
def masked(x, in_bounds, HOW: tl.constexpr, NEUTRAL_PADDING: tl.constexpr):
    """Replaces terms out of bounds by the reduction's neutral element. With NEUTRAL_PADDING, returns x unchanged."""
    if NEUTRAL_PADDING:
        return x
    else:
        return tl.where(in_bounds, x, -_INF if HOW == "max" else 0.0)


@triton.jit
def first_statistic(
    x, x2, in_bounds, per_row, per_row2, per_column, per_column2, tile_column, param0, param1,
    first_term: tl.constexpr, FIRST: tl.constexpr, NEUTRAL_PADDING: tl.constexpr, AXIS: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXP2_BIAS: tl.constexpr,
):  # fmt: skip
    """Returns the first statistic of a tile's elements: the reduction of the op's first term."""
    term = first_term(x, x2, per_row, per_row2, per_column, per_column2, tile_column, param0, param1, AXIS, EXP2_BIAS)
    return reduce(masked(term, in_bounds, FIRST, NEUTRAL_PADDING), FIRST, AXIS, ROWS, COLS, EXP2_BIAS)


@triton.jit
def second_statistic(
    x, x2, in_bounds, per_row, per_row2, per_column, per_column2, tile_column, param0, param1, first, count,
    second_term: tl.constexpr, SECOND: tl.constexpr, NEUTRAL_PADDING: tl.constexpr, AXIS: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXP2_BIAS: tl.constexpr, UNNORMALISED: tl.constexpr, GUARD: tl.constexpr,
):  # fmt: skip
    """Returns the second statistic of a tile's elements. The term may depend on the first one, of `count` elements."""
    term = second_term(
        x, x2, per_row, per_row2, per_column, per_column2, tile_column, param0, param1, first, count, in_bounds, AXIS,
        EXP2_BIAS, UNNORMALISED, GUARD,
    )  # fmt: skip
    return reduce(masked(term, in_bounds, SECOND, NEUTRAL_PADDING), SECOND, AXIS, ROWS, COLS, EXP2_BIAS)
