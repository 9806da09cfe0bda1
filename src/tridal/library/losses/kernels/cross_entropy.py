"""The math of cross-entropy and its gradient. Classes are columns, and the target of a row is the index of a class.

Functions get None for an absent weight, label_smoothing or z_loss. SOFTCAP is the bound of the logits, or None.
"""

import triton
import triton.language as tl

from tridal.kernels.numerics import exp, finite
from tridal.library.softmax.kernels.softmax import rebase  # noqa: F401


@triton.jit
def capped(x, SOFTCAP: tl.constexpr):
    """Returns SOFTCAP * tanh(x / SOFTCAP)."""
    if SOFTCAP is not None:
        ratio = tl.abs(x) * (1.0 / SOFTCAP)
        small = tl.exp(-2.0 * ratio)
        # 1 - small cancels if the ratio is small. There, the terms of tanh's series up to x^11 are exact to float64.
        square = ratio * ratio
        series = square * (62 / 2835 + square * (-1382 / 155925))
        series = square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + series)))
        magnitude = tl.where(ratio < 0.0625, ratio + ratio * series, (1.0 - small) / (1.0 + small)) * SOFTCAP
        x = tl.where(x < 0, -magnitude, magnitude)
    return x


@triton.jit
def through_cap(dy, x, SOFTCAP: tl.constexpr):
    """Returns the gradient of x, given that of `capped(x)`."""
    if SOFTCAP is not None:
        small = tl.exp(tl.abs(x) * (-2.0 / SOFTCAP))
        dy = dy * (4.0 * small / ((1.0 + small) * (1.0 + small)))
    return dy


@triton.jit
def _times(x, weight):
    """Returns x * weight, or x without a weight."""
    return x if weight is None else x * weight


@triton.jit
def logit(x, SOFTCAP: tl.constexpr):
    """Returns the capped logit, the term of row_max."""
    return capped(x, SOFTCAP)


@triton.jit
def exp_term(x, row_max, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr, SOFTCAP: tl.constexpr):
    """Returns the term of row_sum: exp(x - row_max)."""
    return exp(capped(x, SOFTCAP) - tl.expand_dims(finite(row_max), AXIS), EXP2_BIAS)


@triton.jit
def lse(row_max, row_sum):
    """row_max + log(row_sum)."""
    return row_max + tl.log(row_sum)


@triton.jit
def loss(
    index, picked, picked_weight, row_max, row_sum, lse, label_smoothing, z_loss, IGNORE_INDEX: tl.constexpr,
    SOFTCAP: tl.constexpr,
):  # fmt: skip
    """weight * ((1 - label_smoothing) * (lse - x) + z_loss * lse^2) of the target, without the smooth part."""
    number = (row_max - capped(picked, SOFTCAP)) + tl.log(row_sum)  # rounds less than lse - x if x is large
    if label_smoothing is not None:
        number = (1.0 - label_smoothing) * number
    if z_loss is not None:
        penalty = z_loss * lse * lse  # infinite from 2^64 on
        number += penalty if picked_weight is None else tl.where(picked_weight == 0, 0.0, penalty)
    return tl.where(index == IGNORE_INDEX, 0.0, _times(number, picked_weight))


@triton.jit
def loss_of_logit(
    index, target_logit, picked_weight, row_max, row_sum, z_loss, IGNORE_INDEX: tl.constexpr, SOFTCAP: tl.constexpr
):  # fmt: skip
    """Returns `loss` from the logit of the target, without label smoothing."""
    row_lse = lse(row_max, row_sum)
    return loss(index, target_logit, picked_weight, row_max, row_sum, row_lse, None, z_loss, IGNORE_INDEX, SOFTCAP)


@triton.jit
def distance(x, row_lse, weight, AXIS: tl.constexpr, SOFTCAP: tl.constexpr):
    """Returns weight * (lse - x), the term of the smooth part of the loss."""
    return _times(tl.expand_dims(row_lse, AXIS) - capped(x, SOFTCAP), weight)


@triton.jit
def smooth_loss(index, row_loss, distances, count, label_smoothing, IGNORE_INDEX: tl.constexpr):
    """row_loss + label_smoothing / count * distances, where `loss` and `distance` define the terms."""
    return tl.where(index == IGNORE_INDEX, 0.0, row_loss + label_smoothing / count * distances)


@triton.jit
def row_gradient(grad, denominator):
    """Returns the gradient of a row's loss, from that of the reduced loss and the denominator of a mean."""
    return grad if denominator is None else grad / denominator


@triton.jit
def target_gradient(index, grad, denominator, picked_weight, count, IGNORE_INDEX: tl.constexpr):
    """Returns the weighted gradient of the row's loss: 0 if the target is ignored, NaN if it is none of the classes."""
    valid = (index >= 0) & (index < tl.cast(count, tl.int64))
    number = tl.where(valid, _times(row_gradient(grad, denominator), picked_weight), float("nan"))
    return tl.where(index == IGNORE_INDEX, 0.0, number)


@triton.jit
def _index_gradient(
    x, exp, scale, index, column, row_lse, grad, denominator, target_gradient, weight, weight_sum, count,
    label_smoothing, z_loss, lse_grad, AXIS: tl.constexpr, IGNORE_INDEX: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Returns the gradient of a logit with the probability p = exp * scale, where scale is a number per row.

    dx = p * (factor + lse_grad) - weight of the smoothed target, where `factor` is the total of these weights.
    """
    peak, factor = target_gradient, target_gradient
    if label_smoothing is not None:
        peak = (1.0 - label_smoothing) * target_gradient
        spread = tl.where(index == IGNORE_INDEX, 0.0, row_gradient(grad, denominator)) * (label_smoothing / count)
        factor = peak + spread * count if weight is None else peak
    if z_loss is not None:
        factor += 2.0 * z_loss * row_lse * target_gradient
    if lse_grad is not None:
        factor += lse_grad
    is_target = column == tl.expand_dims(index, AXIS)
    dx = exp * tl.expand_dims(factor * scale, AXIS) - tl.where(is_target, tl.expand_dims(peak, AXIS), 0.0)
    if label_smoothing is not None:
        if weight is None:
            dx -= tl.expand_dims(spread, AXIS)
        else:
            dx += tl.expand_dims(spread, AXIS) * (exp * tl.expand_dims(scale, AXIS) * weight_sum - weight)
    return through_cap(dx, x, SOFTCAP)


@triton.jit
def gradient(
    x, index, column, row_lse, grad, denominator, target_gradient, weight, weight_sum, count, label_smoothing, z_loss,
    AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr, IGNORE_INDEX: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    """The gradient of a logit, for `row_gradient` of the row. weight_sum is the sum of all weights."""
    p = exp(capped(x, SOFTCAP) - tl.expand_dims(row_lse, AXIS), EXP2_BIAS)
    return _index_gradient(
        x, p, tl.full(row_lse.shape, 1.0, row_lse.dtype), index, column, row_lse, grad, denominator,
        target_gradient, weight, weight_sum, count, label_smoothing, z_loss, None, AXIS, IGNORE_INDEX, SOFTCAP,
    )  # fmt: skip


@triton.jit
def gradient_of_statistics(
    x, index, column, row_max, row_sum, grad, denominator, lse_grad, target_gradient, weight, weight_sum, count,
    label_smoothing, z_loss, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr, IGNORE_INDEX: tl.constexpr,
    SOFTCAP: tl.constexpr,
):  # fmt: skip
    """The gradient of a logit from its row's statistics, for the gradients of the row's loss and log-sum-exp."""
    return _index_gradient(
        x, exp_term(x, row_max, AXIS, EXP2_BIAS, SOFTCAP), 1.0 / row_sum, index, column, lse(row_max, row_sum), grad,
        denominator, target_gradient, weight, weight_sum, count, label_smoothing, z_loss, lse_grad, AXIS,
        IGNORE_INDEX, SOFTCAP,
    )  # fmt: skip
