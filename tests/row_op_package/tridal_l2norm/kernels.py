"""The math of L2 normalization. Statistics have one value per row."""

import triton
import triton.language as tl


@triton.jit
def square(x):
    """The term of squares."""
    return x * x


@triton.jit
def product(dy, x):
    """The term of dot."""
    return x * dy


@triton.jit
def norm(squares, eps):
    """max(sqrt(squares), eps). It keeps NaN, which tl.maximum does not."""
    root = tl.sqrt(squares)
    return tl.where(root < eps, eps, root)


@triton.jit
def l2_norm(x, norm, AXIS: tl.constexpr):
    """x / norm."""
    return x / tl.expand_dims(norm, AXIS)


@triton.jit
def l2_norm_gradient(dy, x, dot, norm, eps, AXIS: tl.constexpr):
    """(dy - x * dot / norm^2) / norm, or dy / eps where norm <= eps."""
    projection = tl.where(norm > eps, dot / (norm * norm), 0.0)
    difference = dy - x * tl.expand_dims(projection, AXIS)
    return difference / tl.expand_dims(norm, AXIS)
