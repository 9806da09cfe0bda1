"""The math of gated linear units: gate * factor(gate) * up, where gate * factor(gate) is the activation."""

import triton
import triton.language as tl

from tridal.kernels.numerics import exp, normal_cdf, rounded, sigmoids


@triton.jit
def _factor(gate, ACTIVATION: tl.constexpr, EXP2_BIAS: tl.constexpr):
    """Returns the factor of the gate in its activation, and the derivative of the factor."""
    if ACTIVATION == "gelu":
        factor = normal_cdf(gate, EXP2_BIAS)
        slope = 0.3989422804014327 * exp(-0.5 * gate * gate, EXP2_BIAS)
    elif ACTIVATION == "gelu_tanh":
        # 0.5 * (1 + tanh(x)) is sigmoid(2 * x).
        # Beyond |gate| = 100, the factor is 0 or 1 and its derivative 0. An infinite square would give 0 * inf.
        square = tl.minimum(gate * gate, 10000.0)
        factor, other = sigmoids(1.5957691216057308 * gate * (1.0 + 0.044715 * square), EXP2_BIAS)
        slope = factor * other * (1.5957691216057308 + 0.21406444881780073 * square)
    else:
        factor, other = sigmoids(gate, EXP2_BIAS)
        slope = factor * other
    return factor, slope


@triton.jit
def _limited(gate, up, LIMIT: tl.constexpr):
    """Returns the gate, which is at most LIMIT, and up, which is between -LIMIT and LIMIT. It keeps NaN."""
    if LIMIT is None:
        return gate, up
    else:
        limit = tl.full([], LIMIT, gate.dtype)
        return tl.where(gate > limit, limit, gate), tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))


@triton.jit
def glu(
    gate, up, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, ROUNDS: tl.constexpr, GATE_DTYPE: tl.constexpr,
    EXP2_BIAS: tl.constexpr,
):  # fmt: skip
    """activation(gate) * up. With ROUNDS, the activation is rounded to the dtype of the gate."""
    gate, up = _limited(gate, up, LIMIT)
    factor, _ = _factor(gate, ACTIVATION, EXP2_BIAS)
    activated = gate * factor
    if ROUNDS:
        activated = rounded(activated, GATE_DTYPE)
    return activated * up


@triton.jit
def gate_gradient(dy, gate, up, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, EXP2_BIAS: tl.constexpr):
    """dy * up * (factor + gate * slope), the derivative of gate * factor. It is zero beyond LIMIT."""
    limited, other = _limited(gate, up, LIMIT)
    factor, slope = _factor(limited, ACTIVATION, EXP2_BIAS)
    gradient = dy * other * (factor + limited * slope)
    return gradient if LIMIT is None else tl.where(gate > limited, 0.0, gradient)


@triton.jit
def up_gradient(dy, gate, up, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, EXP2_BIAS: tl.constexpr):
    """dy * activation(gate). It is zero beyond LIMIT."""
    limited, other = _limited(gate, up, LIMIT)
    factor, _ = _factor(limited, ACTIVATION, EXP2_BIAS)
    gradient = dy * (limited * factor)
    return gradient if LIMIT is None else tl.where((up > other) | (up < other), 0.0, gradient)
