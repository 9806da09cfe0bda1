"""The math of skip norm. Statistics have one value per row."""

import triton
import triton.language as tl


@triton.jit
def total(x, residual):
    """x + residual, or x without a residual."""
    return x if residual is None else x + residual


@triton.jit
def square(x, residual):
    """The term of squares."""
    h = total(x, residual)
    return h * h


@triton.jit
def inverse_rms(squares, count, eps):
    """1 / sqrt(mean of squares + eps)."""
    return 1.0 / tl.sqrt(squares / count + eps)


@triton.jit
def skip_norm(x, residual, weight, skip, inverse_rms, AXIS: tl.constexpr):
    """total * inverse_rms * weight + total * skip."""
    factor = tl.expand_dims(inverse_rms, AXIS) * weight + skip
    return total(x, residual) * factor


@triton.jit
def product(dy, h, weight, inverse_rms, AXIS: tl.constexpr):
    """The term of dot: dn * n, the normalized element and its gradient."""
    return dy * weight * (h * tl.expand_dims(inverse_rms, AXIS))


@triton.jit
def gradient(
    dy, h, weight, skip, inverse_rms, dot, count, AXIS: tl.constexpr
):
    """(dn - n * mean(dn * n)) * inverse_rms + dy * skip."""
    projection = h * tl.expand_dims(inverse_rms * dot / count, AXIS)
    dn = (dy * weight - projection) * tl.expand_dims(inverse_rms, AXIS)
    return dn + dy * skip


@triton.jit
def weight_gradient(dy, h, inverse_rms, AXIS: tl.constexpr):
    """The term of the gradient of weight."""
    return dy * (h * tl.expand_dims(inverse_rms, AXIS))


@triton.jit
def skip_gradient(dy, h):
    """The term of the gradient of skip."""
    return dy * h
