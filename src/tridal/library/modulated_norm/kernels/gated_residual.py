"""The math of modulated norms of residual + gate * x, in names that have the word `gated`.

In gradients, x is the sum, dsum the gradient of the sum as a result, and branch the tensor that the gate multiplies. So
the gradient of the sum is that of the norm plus dsum.
"""

import triton
import triton.language as tl

from tridal.kernels.numerics import residual_sum
from tridal.library.modulated_norm.kernels.modulated_norm import (
    bias_gradient,
    cast,
    inverse_deviation,
    inverse_rms,
    layer_gradient,
    layer_product,
    layer_scale_gradient,
    layer_weight_gradient,
    mean,
    modulated_layer_norm,
    modulated_rms_norm,
    rebase_squares,
    rms_gradient,
    rms_product,
    rms_scale_gradient,
    rms_weight_gradient,
    shift_gradient,
    weighted,
)
from tridal.library.norms.kernels.layer_norm import square_deviation
from tridal.library.norms.kernels.rms_norm import square

__all__ = [
    "bias_gradient", "inverse_deviation", "inverse_rms", "layer_product", "layer_scale_gradient",
    "layer_weight_gradient", "mean", "rebase_squares", "rms_product", "rms_scale_gradient", "rms_weight_gradient",
    "shift_gradient", "weighted",
]  # fmt: skip


@triton.jit
def _gated(x, gate, SUM_DTYPE: tl.constexpr, CASTING: tl.constexpr):
    """Returns gate * x, rounded if CASTING is "llama"."""
    return cast(x * gate, SUM_DTYPE, CASTING)


@triton.jit
def gated_sum(x, residual, gate, SUM_DTYPE: tl.constexpr, CASTING: tl.constexpr):
    """Returns residual + gate * x, rounded to the dtype in which the sum is stored."""
    return residual_sum(_gated(x, gate, SUM_DTYPE, CASTING), residual, SUM_DTYPE)


@triton.jit
def gated_square(x, residual, gate, SUM_DTYPE: tl.constexpr, CASTING: tl.constexpr):
    """Returns the term of squares of an RMSNorm."""
    return square(_gated(x, gate, SUM_DTYPE, CASTING), residual, SUM_DTYPE=SUM_DTYPE)


@triton.jit
def gated_square_deviation(
    x, residual, gate, total, count, in_bounds, SUM_DTYPE: tl.constexpr, CASTING: tl.constexpr, AXIS: tl.constexpr
):  # fmt: skip
    """Returns the term of squares of a LayerNorm."""
    x = _gated(x, gate, SUM_DTYPE, CASTING)
    return square_deviation(x, residual, total, count, in_bounds, SUM_DTYPE=SUM_DTYPE, AXIS=AXIS)


@triton.jit
def gated_modulated_layer_norm(
    x, residual, gate, scaling, shift, weight, bias, total, count, inverse_deviation, SUM_DTYPE: tl.constexpr,
    FACTOR_DTYPE: tl.constexpr, CASTING: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    """layer_norm(residual + gate * x) * (1 + scaling) + shift."""
    return modulated_layer_norm(
        _gated(x, gate, SUM_DTYPE, CASTING), residual, scaling, shift, weight, bias, total, count, inverse_deviation,
        SUM_DTYPE=SUM_DTYPE, FACTOR_DTYPE=FACTOR_DTYPE, CASTING=CASTING, AXIS=AXIS,
    )  # fmt: skip


@triton.jit
def gated_modulated_rms_norm(
    x, residual, gate, scaling, shift, weight, inverse_rms, SUM_DTYPE: tl.constexpr,
    FACTOR_DTYPE: tl.constexpr, CASTING: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    """rms_norm(residual + gate * x) * (1 + scaling) + shift."""
    return modulated_rms_norm(
        _gated(x, gate, SUM_DTYPE, CASTING), residual, scaling, shift, weight, inverse_rms, SUM_DTYPE=SUM_DTYPE,
        FACTOR_DTYPE=FACTOR_DTYPE, CASTING=CASTING, AXIS=AXIS,
    )  # fmt: skip


@triton.jit
def layer_sum_gradient(
    dy, dsum, x, scaling, weight, mean, inverse_deviation, total, dot, count, AXIS: tl.constexpr
):  # fmt: skip
    """The gradient of the sum and of the residual, through layer_norm and through the sum itself."""
    return layer_gradient(dy, x, scaling, weight, mean, inverse_deviation, total, dot, count, AXIS=AXIS) + dsum


@triton.jit
def rms_sum_gradient(dy, dsum, x, scaling, weight, inverse_rms, dot, count, AXIS: tl.constexpr):
    """The gradient of the sum and of the residual, through rms_norm and through the sum itself."""
    return rms_gradient(dy, x, scaling, weight, inverse_rms, dot, count, AXIS=AXIS) + dsum


@triton.jit
def layer_branch_gradient(
    dy, dsum, x, gate, scaling, weight, mean, inverse_deviation, total, dot, count, AXIS: tl.constexpr
):  # fmt: skip
    """The gradient of the sum times the gate."""
    return gate * layer_sum_gradient(
        dy, dsum, x, scaling, weight, mean, inverse_deviation, total, dot, count, AXIS=AXIS
    )


@triton.jit
def rms_branch_gradient(dy, dsum, x, gate, scaling, weight, inverse_rms, dot, count, AXIS: tl.constexpr):
    """The gradient of the sum times the gate."""
    return gate * rms_sum_gradient(dy, dsum, x, scaling, weight, inverse_rms, dot, count, AXIS=AXIS)


@triton.jit
def layer_gate_gradient(
    dy, dsum, x, branch, scaling, weight, mean, inverse_deviation, total, dot, count, AXIS: tl.constexpr
):  # fmt: skip
    """The gradient of the sum times the branch."""
    return branch * layer_sum_gradient(
        dy, dsum, x, scaling, weight, mean, inverse_deviation, total, dot, count, AXIS=AXIS
    )


@triton.jit
def rms_gate_gradient(dy, dsum, x, branch, scaling, weight, inverse_rms, dot, count, AXIS: tl.constexpr):
    """The gradient of the sum times the branch."""
    return branch * rms_sum_gradient(dy, dsum, x, scaling, weight, inverse_rms, dot, count, AXIS=AXIS)
