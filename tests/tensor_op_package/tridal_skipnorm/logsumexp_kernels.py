"""The math of logsumexp. Statistics have one value per row."""

import triton
import triton.language as tl

from tridal.kernels.numerics import exp

_INF = tl.constexpr(float("inf"))


@triton.jit
def finite(row_max):
    """row_max, or 0 where it is infinite, because inf - inf is NaN."""
    return tl.where(tl.abs(row_max) == _INF, 0.0, row_max)


@triton.jit
def exponential(x, row_max, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr):
    """The term of row_sum: exp(x - row_max)."""
    return exp(x - tl.expand_dims(finite(row_max), AXIS), EXP2_BIAS)


@triton.jit
def rebase(row_sum, part_row_max, row_max, EXP2_BIAS: tl.constexpr):
    """Adapts the sum of a part of a row to the maximum of the row."""
    return row_sum * exp(part_row_max - finite(row_max), EXP2_BIAS)


@triton.jit
def logsumexp(row_max, row_sum):
    """log(row_sum) + row_max."""
    return tl.log(row_sum) + finite(row_max)


@triton.jit
def gradient(x, dy, y, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr):
    """dy * exp(x - y), a share of the sum."""
    share = exp(x - tl.expand_dims(y, AXIS), EXP2_BIAS)
    return tl.expand_dims(dy, AXIS) * share
