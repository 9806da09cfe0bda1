"""The math of softmax, log_softmax and their gradients. Statistics have one value per row."""

import triton
import triton.language as tl

from tridal.kernels.numerics import exp, exp_sub, finite, reciprocal


@triton.jit
def exp_term(x, row_max, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr, UNNORMALIZED: tl.constexpr, GUARD: tl.constexpr):
    """Returns the term of softmax's row_sum: exp(x - row_max), which may be multiplied by a constant per row."""
    return exp_sub(x, finite(row_max) if GUARD else row_max, AXIS, EXP2_BIAS, UNNORMALIZED)


@triton.jit
def exact_exp_term(x, row_max, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr, GUARD: tl.constexpr):
    """Returns the term of log_softmax's row_sum: exp(x - row_max), not multiplied by a constant."""
    return exp_sub(x, finite(row_max) if GUARD else row_max, AXIS, EXP2_BIAS, False)


@triton.jit
def rebase(row_sum, part_row_max, row_max, EXP2_BIAS: tl.constexpr):
    """Converts a part's sum of exp(x - part_row_max) to its sum of exp(x - row_max)."""
    return row_sum * exp(part_row_max - finite(row_max), EXP2_BIAS)


@triton.jit
def row_scale(part_scale, row_sum, EXP2_BIAS: tl.constexpr, REFINE: tl.constexpr, ZERO_MASKED_ROWS: tl.constexpr):
    """Returns part_scale / row_sum, the factor between a term and softmax."""
    if ZERO_MASKED_ROWS:
        row_sum = tl.where(row_sum == 0, 1.0, row_sum)
    return part_scale * reciprocal(row_sum, EXP2_BIAS, REFINE)


@triton.jit
def softmax(
    x, part_row_max, row_scale, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr, UNNORMALIZED: tl.constexpr,
    GUARD: tl.constexpr,
):  # fmt: skip
    """exp(x - row_max) / row_sum."""
    return exp_term(x, part_row_max, AXIS, EXP2_BIAS, UNNORMALIZED, GUARD) * tl.expand_dims(row_scale, AXIS)


@triton.jit
def log_softmax(x, row_max, row_sum, AXIS: tl.constexpr):
    """x - row_max - log(row_sum)."""
    return (x - tl.expand_dims(row_max, AXIS)) - tl.expand_dims(tl.log(row_sum), AXIS)


@triton.jit
def product(dy, y):
    """Returns y * dy, the term of row_dot in softmax's gradient."""
    return y * dy


@triton.jit
def softmax_gradient(dy, y, row_dot, scale, AXIS: tl.constexpr):
    """scale * y * (dy - sum(y * dy))."""
    dx = y * (dy - tl.expand_dims(row_dot, AXIS))
    return dx if scale is None else dx * scale


@triton.jit
def log_softmax_gradient(dy, y, row_sum, scale, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr):
    """scale * (dy - exp(y) * sum(dy))."""
    dx = dy - exp(y, EXP2_BIAS) * tl.expand_dims(row_sum, AXIS)
    return dx if scale is None else dx * scale
