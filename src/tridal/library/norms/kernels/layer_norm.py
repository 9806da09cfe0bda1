"""The math of LayerNorm and its gradient. Statistics have one value per row."""

import triton
import triton.language as tl

from tridal.kernels.numerics import residual_sum
from tridal.library.norms.kernels.rms_norm import weighted


@triton.jit
def deviation(x, residual, total, count, SUM_DTYPE: tl.constexpr, AXIS: tl.constexpr):
    """Returns the difference of x + residual from the mean of its row."""
    return residual_sum(x, residual, SUM_DTYPE) - tl.expand_dims(total / count, AXIS)


@triton.jit
def square_deviation(x, residual, total, count, in_bounds, SUM_DTYPE: tl.constexpr, AXIS: tl.constexpr):
    """Returns the term of squares. It masks differences, so that a square and its addition are one operation."""
    difference = tl.where(in_bounds, deviation(x, residual, total, count, SUM_DTYPE, AXIS), 0.0)
    return difference * difference


@triton.jit
def rebase_squares(squares, part_total, total, part_count, count):
    """Converts a part's sum of squared differences from its mean to one of differences from the mean of the row."""
    shift = part_total / tl.where(part_count == 0, 1.0, part_count) - total / count
    return squares + part_count * shift * shift


@triton.jit
def mean(total, count):
    """Returns the mean of a row."""
    return total / count


@triton.jit
def inverse_deviation(squares, count, eps):
    """Returns 1 / sqrt(variance + eps)."""
    return 1.0 / tl.sqrt(squares / count + eps)


@triton.jit
def layer_norm(
    x, residual, weight, bias, total, count, inverse_deviation, weight_offset, SUM_DTYPE: tl.constexpr,
    AXIS: tl.constexpr,
):  # fmt: skip
    """(x + residual - mean) * inverse_deviation * (weight + weight_offset) + bias."""
    y = deviation(x, residual, total, count, SUM_DTYPE, AXIS) * tl.expand_dims(inverse_deviation, AXIS)
    y = weighted(y, weight, weight_offset)
    if bias is not None:
        y = y + bias
    return y


@triton.jit
def normalized(x, mean, inverse_deviation, AXIS: tl.constexpr):
    """Returns the normalized element from the saved statistics of its row."""
    return (x - tl.expand_dims(mean, AXIS)) * tl.expand_dims(inverse_deviation, AXIS)


@triton.jit
def weighted_product(dy, x, weight, mean, inverse_deviation, weight_offset, AXIS: tl.constexpr):
    """Returns the term of dot: the gradient of the normalized element times the normalized element."""
    return weighted(dy, weight, weight_offset) * normalized(x, mean, inverse_deviation, AXIS)


@triton.jit
def layer_norm_gradient(dy, x, weight, mean, inverse_deviation, weight_offset, total, dot, count, AXIS: tl.constexpr):
    """(dn - mean(dn) - n * mean(n * dn)) * inverse_deviation, where n is the normalized element and dn its gradient."""
    projection = normalized(x, mean, inverse_deviation, AXIS) * tl.expand_dims(dot / count, AXIS)
    centered = weighted(dy, weight, weight_offset) - tl.expand_dims(total / count, AXIS)
    return (centered - projection) * tl.expand_dims(inverse_deviation, AXIS)


@triton.jit
def weight_gradient(dy, x, mean, inverse_deviation, AXIS: tl.constexpr):
    """Returns the term of the weight's gradient."""
    return dy * normalized(x, mean, inverse_deviation, AXIS)


@triton.jit
def bias_gradient(dy):
    """Returns the term of the bias's gradient."""
    return dy
