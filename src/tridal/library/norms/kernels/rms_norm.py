"""The math of RMSNorm and its gradient. Statistics have one value per row."""

import triton
import triton.language as tl

from tridal.kernels.numerics import residual_sum, rounded


@triton.jit
def square(x, residual, SUM_DTYPE: tl.constexpr):
    """Returns the term of squares."""
    total = residual_sum(x, residual, SUM_DTYPE)
    return total * total


@triton.jit
def inverse_rms(squares, count, eps):
    """Returns 1 / sqrt(mean of squares + eps)."""
    return 1.0 / tl.sqrt(squares / count + eps)


@triton.jit
def rms_norm(
    x, residual, weight, inverse_rms, weight_offset, SUM_DTYPE: tl.constexpr, CASTING: tl.constexpr, AXIS: tl.constexpr
):  # fmt: skip
    """(x + residual) * inverse_rms, rounded if CASTING is "llama", times weight + weight_offset."""
    y = residual_sum(x, residual, SUM_DTYPE) * tl.expand_dims(inverse_rms, AXIS)
    if CASTING == "llama":
        y = rounded(y, SUM_DTYPE)
    return weighted(y, weight, weight_offset)


@triton.jit
def weighted(dy, weight, weight_offset):
    """Returns dy * (weight + weight_offset), the gradient of the normalized element. A result is weighted alike."""
    if weight is None:
        return dy
    else:
        return dy * (weight if weight_offset is None else weight + weight_offset)


@triton.jit
def weighted_product(dy, x, weight, inverse_rms, weight_offset, AXIS: tl.constexpr):
    """Returns the term of dot: the gradient of the normalized element times the normalized element."""
    return weighted(dy, weight, weight_offset) * (x * tl.expand_dims(inverse_rms, AXIS))


@triton.jit
def rms_norm_gradient(dy, x, weight, inverse_rms, weight_offset, dot, count, AXIS: tl.constexpr):
    """(dn - n * mean(n * dn)) * inverse_rms, where n is the normalized element and dn its gradient."""
    projection = x * tl.expand_dims(inverse_rms * dot / count, AXIS)
    return (weighted(dy, weight, weight_offset) - projection) * tl.expand_dims(inverse_rms, AXIS)


@triton.jit
def weight_gradient(dy, x, inverse_rms, AXIS: tl.constexpr):
    """Returns the term of the weight's gradient."""
    return dy * (x * tl.expand_dims(inverse_rms, AXIS))
