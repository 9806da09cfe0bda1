"""The reductions that make a statistic: "max", "sum", and "accurate_sum", a sum that rounds less often."""

import triton
import triton.language as tl

INF = float("inf")


@triton.jit
def reduce(x, HOW: tl.constexpr, AXIS: tl.constexpr, COLS: tl.constexpr):
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
def masked(x, in_bounds, HOW: tl.constexpr):
    """Replaces terms out of bounds by the reduction's neutral element. With NEUTRAL_PADDING, returns x unchanged."""
    if NEUTRAL_PADDING:
        return x
    else:
        return tl.where(in_bounds, x, -INF if HOW == "max" else 0.0)


@triton.jit
def statistic(term, in_bounds, HOW: tl.constexpr, AXIS: tl.constexpr, COLS: tl.constexpr):
    """Returns a statistic of a tile: the reduction of a term of its elements."""
    return reduce(masked(term, in_bounds, HOW), HOW, AXIS, COLS)
