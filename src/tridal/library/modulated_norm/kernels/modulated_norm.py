"""The math of modulated norms: y * (1 + scaling) + shift, where y is a norm of x with its weight and bias.

The gradient of y is dy * (1 + scaling), so the gradients of the norm are those of its own op. `layer` and `rms` in
names say which norm it is.
"""

import triton
import triton.language as tl

from tridal.kernels.numerics import residual_sum, rounded
from tridal.library.norms.kernels.layer_norm import (
    inverse_deviation,
    mean,
    normalized,
    rebase_squares,
    square_deviation,
)
from tridal.library.norms.kernels.layer_norm import layer_norm as _layer_norm
from tridal.library.norms.kernels.layer_norm import layer_norm_gradient as _layer_norm_gradient
from tridal.library.norms.kernels.layer_norm import weighted as _weighted
from tridal.library.norms.kernels.rms_norm import inverse_rms, square
from tridal.library.norms.kernels.rms_norm import rms_norm as _rms_norm
from tridal.library.norms.kernels.rms_norm import rms_norm_gradient as _rms_norm_gradient

__all__ = [
    "inverse_deviation", "inverse_rms", "mean", "rebase_squares", "residual_sum", "square", "square_deviation",
]  # fmt: skip


@triton.jit
def cast(x, DTYPE: tl.constexpr, CASTING: tl.constexpr):
    """Returns x rounded to DTYPE if CASTING is "llama"."""
    if CASTING == "llama":
        return rounded(x, DTYPE)
    else:
        return x


@triton.jit
def _modulated(
    y, scaling, shift, SUM_DTYPE: tl.constexpr, FACTOR_DTYPE: tl.constexpr, CASTING: tl.constexpr
):  # fmt: skip
    """Returns y * (1 + scaling) + shift, or without the shift if there is none."""
    factor = cast(1.0 + scaling, FACTOR_DTYPE, CASTING)
    y = cast(cast(y, SUM_DTYPE, CASTING) * factor, SUM_DTYPE, CASTING)
    return y if shift is None else y + shift


@triton.jit
def modulated_layer_norm(
    x, residual, scaling, shift, weight, bias, total, count, inverse_deviation, SUM_DTYPE: tl.constexpr,
    FACTOR_DTYPE: tl.constexpr, CASTING: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    """layer_norm(x + residual) * (1 + scaling) + shift."""
    y = _layer_norm(x, residual, weight, bias, total, count, inverse_deviation, None, SUM_DTYPE=SUM_DTYPE, AXIS=AXIS)
    return _modulated(y, scaling, shift, SUM_DTYPE, FACTOR_DTYPE, CASTING)


@triton.jit
def modulated_rms_norm(
    x, residual, scaling, shift, weight, inverse_rms, SUM_DTYPE: tl.constexpr,
    FACTOR_DTYPE: tl.constexpr, CASTING: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    """rms_norm(x + residual) * (1 + scaling) + shift."""
    y = _rms_norm(x, residual, weight, inverse_rms, None, SUM_DTYPE=SUM_DTYPE, CASTING=CASTING, AXIS=AXIS)
    return _modulated(y, scaling, shift, SUM_DTYPE, FACTOR_DTYPE, CASTING)


@triton.jit
def weighted(dy, scaling, weight):
    """Returns the term of total: the gradient of the normalized element."""
    return _weighted(dy * (1.0 + scaling), weight, None)


@triton.jit
def layer_product(dy, x, scaling, weight, mean, inverse_deviation, AXIS: tl.constexpr):
    """Returns the term of dot: the gradient of the normalized element times the normalized element."""
    return weighted(dy, scaling, weight) * normalized(x, mean, inverse_deviation, AXIS)


@triton.jit
def rms_product(dy, x, scaling, weight, inverse_rms, AXIS: tl.constexpr):
    """Returns the term of dot: the gradient of the normalized element times the normalized element."""
    return weighted(dy, scaling, weight) * (x * tl.expand_dims(inverse_rms, AXIS))


@triton.jit
def layer_gradient(dy, x, scaling, weight, mean, inverse_deviation, total, dot, count, AXIS: tl.constexpr):
    """The gradient of x through layer_norm."""
    return _layer_norm_gradient(
        dy * (1.0 + scaling), x, weight, mean, inverse_deviation, None, total, dot, count, AXIS=AXIS
    )


@triton.jit
def rms_gradient(dy, x, scaling, weight, inverse_rms, dot, count, AXIS: tl.constexpr):
    """The gradient of x through rms_norm."""
    return _rms_norm_gradient(dy * (1.0 + scaling), x, weight, inverse_rms, None, dot, count, AXIS=AXIS)


@triton.jit
def layer_scale_gradient(dy, x, weight, bias, mean, inverse_deviation, AXIS: tl.constexpr):
    """dy * layer_norm(x)."""
    y = _weighted(normalized(x, mean, inverse_deviation, AXIS), weight, None)
    return dy * (y if bias is None else y + bias)


@triton.jit
def rms_scale_gradient(dy, x, weight, inverse_rms, AXIS: tl.constexpr):
    """dy * rms_norm(x)."""
    return dy * _weighted(x * tl.expand_dims(inverse_rms, AXIS), weight, None)


@triton.jit
def shift_gradient(dy):
    """The gradient of the shift."""
    return dy


@triton.jit
def layer_weight_gradient(dy, x, scaling, mean, inverse_deviation, AXIS: tl.constexpr):
    """Returns the term of the weight's gradient."""
    return dy * (1.0 + scaling) * normalized(x, mean, inverse_deviation, AXIS)


@triton.jit
def rms_weight_gradient(dy, x, scaling, inverse_rms, AXIS: tl.constexpr):
    """Returns the term of the weight's gradient."""
    return dy * (1.0 + scaling) * (x * tl.expand_dims(inverse_rms, AXIS))


@triton.jit
def bias_gradient(dy, scaling):
    """Returns the term of the bias's gradient."""
    return dy * (1.0 + scaling)
