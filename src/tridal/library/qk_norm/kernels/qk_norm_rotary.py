"""The math of RMSNorm with rotary embedding. A row is a head of a token, read as the two elements of its pairs.

n = x * inverse_rms * (weight + weight_offset), where inverse_rms is that of both elements of all pairs, and n is
rotated. The gradient rotates dy by the opposite angle, then passes the norm.
"""

import triton
import triton.language as tl

from tridal.library.norms.kernels.rms_norm import rms_norm_gradient as _rms_norm_gradient
from tridal.library.norms.kernels.rms_norm import weight_gradient as _weight_gradient
from tridal.library.norms.kernels.rms_norm import weighted as _weighted
from tridal.library.rotary.kernels.rotary import first_rotated as _first_rotated
from tridal.library.rotary.kernels.rotary import second_rotated as _second_rotated


@triton.jit
def square(first, second):
    """Returns the term of squares, the squares of a pair."""
    return first * first + second * second


@triton.jit
def inverse_rms(squares, count, eps):
    """Returns 1 / sqrt(mean of squares + eps) of `count` pairs."""
    return 1.0 / tl.sqrt(squares / (2.0 * count) + eps)


@triton.jit
def _normalized(x, weight, inverse_rms, weight_offset, AXIS: tl.constexpr):
    """Returns x * inverse_rms * (weight + weight_offset)."""
    return _weighted(x * tl.expand_dims(inverse_rms, AXIS), weight, weight_offset)


@triton.jit
def first_result(
    first, second, cos_first, sin_first, first_weight, second_weight, inverse_rms, weight_offset, AXIS: tl.constexpr
):  # fmt: skip
    """The first elements of the rotated pairs."""
    n_first = _normalized(first, first_weight, inverse_rms, weight_offset, AXIS)
    n_second = _normalized(second, second_weight, inverse_rms, weight_offset, AXIS)
    return _first_rotated(n_first, n_second, cos_first, sin_first, SIGN=1.0, ROUNDS=False, PRODUCT_DTYPE="float32")


@triton.jit
def second_result(
    first, second, cos_second, sin_second, first_weight, second_weight, inverse_rms, weight_offset, AXIS: tl.constexpr
):  # fmt: skip
    """The second elements of the rotated pairs."""
    n_first = _normalized(first, first_weight, inverse_rms, weight_offset, AXIS)
    n_second = _normalized(second, second_weight, inverse_rms, weight_offset, AXIS)
    return _second_rotated(n_first, n_second, cos_second, sin_second, SIGN=1.0, ROUNDS=False, PRODUCT_DTYPE="float32")


@triton.jit
def _dn_first(dy_first, dy_second, cos_first, sin_second):
    """Returns the gradient of the first element of n."""
    return _first_rotated(dy_first, dy_second, cos_first, sin_second, SIGN=-1.0, ROUNDS=False, PRODUCT_DTYPE="float32")


@triton.jit
def _dn_second(dy_first, dy_second, cos_second, sin_first):
    """Returns the gradient of the second element of n."""
    return _second_rotated(dy_first, dy_second, cos_second, sin_first, SIGN=-1.0, ROUNDS=False, PRODUCT_DTYPE="float32")


@triton.jit
def product(
    first, second, cos_first, cos_second, sin_first, sin_second, dy_first, dy_second, first_weight, second_weight,
    weight_offset,
):  # fmt: skip
    """Returns the term of dot: the weighted gradients of the elements of n times the pair.

    It does not contain inverse_rms, which is known after the sum of squares, so that both sums are computed at once.
    """
    dn_first = _weighted(_dn_first(dy_first, dy_second, cos_first, sin_second), first_weight, weight_offset)
    dn_second = _weighted(_dn_second(dy_first, dy_second, cos_second, sin_first), second_weight, weight_offset)
    return dn_first * first + dn_second * second


@triton.jit
def _gradient(dn, x, weight, inverse_rms, weight_offset, dot, count, AXIS: tl.constexpr):
    """Returns the gradient of an element of a pair from that of n."""
    return _rms_norm_gradient(dn, x, weight, inverse_rms, weight_offset, dot * inverse_rms, 2.0 * count, AXIS=AXIS)


@triton.jit
def first_gradient(
    first, cos_first, sin_second, dy_first, dy_second, first_weight, inverse_rms, weight_offset, dot, count,
    AXIS: tl.constexpr,
):  # fmt: skip
    """The gradient of the first elements."""
    dn = _dn_first(dy_first, dy_second, cos_first, sin_second)
    return _gradient(dn, first, first_weight, inverse_rms, weight_offset, dot, count, AXIS)


@triton.jit
def second_gradient(
    second, cos_second, sin_first, dy_first, dy_second, second_weight, inverse_rms, weight_offset, dot, count,
    AXIS: tl.constexpr,
):  # fmt: skip
    """The gradient of the second elements."""
    dn = _dn_second(dy_first, dy_second, cos_second, sin_first)
    return _gradient(dn, second, second_weight, inverse_rms, weight_offset, dot, count, AXIS)


@triton.jit
def first_weight_gradient(first, cos_first, sin_second, dy_first, dy_second, inverse_rms, AXIS: tl.constexpr):
    """Returns the term of the gradient of the weights of first elements."""
    return _weight_gradient(_dn_first(dy_first, dy_second, cos_first, sin_second), first, inverse_rms, AXIS=AXIS)


@triton.jit
def second_weight_gradient(second, cos_second, sin_first, dy_first, dy_second, inverse_rms, AXIS: tl.constexpr):
    """Returns the term of the gradient of the weights of second elements."""
    return _weight_gradient(_dn_second(dy_first, dy_second, cos_second, sin_first), second, inverse_rms, AXIS=AXIS)
