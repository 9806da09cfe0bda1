"""The math of the gated RMSNorm: x * activation(gate) * weight / sqrt(mean of squares + eps).

With GATE_FIRST, the squares are those of the gated elements, otherwise those of x.
"""

import triton
import triton.language as tl

from tridal.kernels.numerics import rounded, sigmoids
from tridal.library.norms.kernels import rms_norm

inverse_rms = rms_norm.inverse_rms


@triton.jit
def _activation(gate, ACTIVATION: tl.constexpr, EXP2_BIAS: tl.constexpr):
    """activation(gate), and its derivative."""
    large, small = sigmoids(gate, EXP2_BIAS)
    if ACTIVATION == "silu":
        return gate * large, large + gate * (large * small)
    else:
        return large, large * small


@triton.jit
def square(x, gate, ACTIVATION: tl.constexpr, GATE_FIRST: tl.constexpr, EXP2_BIAS: tl.constexpr):
    """Returns the term of squares."""
    if GATE_FIRST:
        activated, _ = _activation(gate, ACTIVATION, EXP2_BIAS)
        x = x * activated
    return x * x


@triton.jit
def gated_rms_norm(
    x, gate, weight, inverse_rms, ACTIVATION: tl.constexpr, GATE_FIRST: tl.constexpr, CASTING: tl.constexpr,
    INPUT_DTYPE: tl.constexpr, WEIGHTED_DTYPE: tl.constexpr, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr,
):  # fmt: skip
    """x * inverse_rms * weight * activation(gate).

    If CASTING is "llama", the normalized element is rounded to INPUT_DTYPE, and then its product with the weight to
    WEIGHTED_DTYPE. With GATE_FIRST, this product is the result; otherwise it is multiplied by the activation.
    """
    activated, _ = _activation(gate, ACTIVATION, EXP2_BIAS)
    if CASTING == "llama":
        if GATE_FIRST:
            return weighted(rounded(x * activated * tl.expand_dims(inverse_rms, AXIS), INPUT_DTYPE), weight)
        else:
            y = weighted(rounded(x * tl.expand_dims(inverse_rms, AXIS), INPUT_DTYPE), weight)
            return rounded(y, WEIGHTED_DTYPE) * activated
    else:
        return weighted(x * tl.expand_dims(inverse_rms, AXIS), weight) * activated


@triton.jit
def weighted(x, weight):
    """Returns x * weight, or x without a weight."""
    if weight is None:
        return x
    else:
        return x * weight


@triton.jit
def product(
    dy, x, gate, weight, inverse_rms, ACTIVATION: tl.constexpr, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr
):  # fmt: skip
    """Returns the term of dot: the gradient of the normalized element times the normalized element.

    It is the same with and without GATE_FIRST, because the activation is a factor of one or of the other.
    """
    activated, _ = _activation(gate, ACTIVATION, EXP2_BIAS)
    return dy * (weighted(x * tl.expand_dims(inverse_rms, AXIS), weight) * activated)


@triton.jit
def x_gradient(
    dy, x, gate, weight, inverse_rms, dot, count, ACTIVATION: tl.constexpr, GATE_FIRST: tl.constexpr,
    AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr,
):  # fmt: skip
    """(dn - n * mean(n * dn)) * inverse_rms, where n is the normalized element and dn its gradient.

    With GATE_FIRST, n has the factor activation(gate), and the result is multiplied by it; otherwise dn has it.
    """
    activated, _ = _activation(gate, ACTIVATION, EXP2_BIAS)
    projection = x * tl.expand_dims(inverse_rms * dot / count, AXIS)
    if GATE_FIRST:
        found = (weighted(dy, weight) - projection * activated) * activated
    else:
        found = weighted(dy, weight) * activated - projection
    return found * tl.expand_dims(inverse_rms, AXIS)


@triton.jit
def gate_gradient(
    dy, x, gate, weight, inverse_rms, dot, count, ACTIVATION: tl.constexpr, GATE_FIRST: tl.constexpr,
    AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr,
):  # fmt: skip
    """The gradient of activation(gate), times the derivative of the activation."""
    activated, slope = _activation(gate, ACTIVATION, EXP2_BIAS)
    dn = weighted(dy, weight)
    if GATE_FIRST:
        dn = dn - x * activated * tl.expand_dims(inverse_rms * dot / count, AXIS)
    return dn * (x * tl.expand_dims(inverse_rms, AXIS)) * slope


@triton.jit
def weight_gradient(
    dy, x, gate, inverse_rms, ACTIVATION: tl.constexpr, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr
):  # fmt: skip
    """Returns the term of the weight's gradient."""
    activated, _ = _activation(gate, ACTIVATION, EXP2_BIAS)
    return dy * (x * tl.expand_dims(inverse_rms, AXIS)) * activated
