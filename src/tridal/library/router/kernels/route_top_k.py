"""The math of a router: scores of experts, the order in which they are chosen, weights, and the gradient.

Columns are experts, of which TOP are chosen. EXPERTS is the number of experts of a group.
"""

import triton
import triton.language as tl

from tridal.kernels.numerics import exp, sigmoids
from tridal.kernels.top import first_of_largest, ordered, without


@triton.jit
def exp_term(x, row_max, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr):
    """Returns the term of row_sum."""
    return exp(x - tl.expand_dims(row_max, AXIS), EXP2_BIAS)


@triton.jit
def _softplus(x):
    """Returns log(1 + exp(x)) by log(1 + e) with e = exp(-|x|), which is e - e * e / 2 for small e."""
    e = tl.exp(-tl.abs(x))
    return tl.maximum(x, 0.0) + tl.where(e < 1e-4, e - 0.5 * e * e, tl.log(1.0 + e))


@triton.jit
def score(x, row_max, row_sum, SCORE: tl.constexpr, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr):
    """Returns the score of an expert, the term of chosen_sum."""
    if SCORE == "softmax":
        return exp_term(x, row_max, AXIS, EXP2_BIAS) / tl.expand_dims(row_sum, AXIS)
    elif SCORE == "sigmoid":
        return sigmoids(x, EXP2_BIAS)[0]
    else:
        return tl.sqrt(_softplus(x))


@triton.jit
def choice(
    x, bias, column, row_max, row_sum, SCORE: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr,
    EXPERTS: tl.constexpr, GROUP_SCORE: tl.constexpr, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr,
):  # fmt: skip
    """Returns the numbers by which experts are chosen, or -inf for those of groups that are not chosen.

    All scores grow with the logits, so these are as good if nothing is added, and are rounded less.
    """
    if bias is not None:
        x = score(x, row_max, row_sum, SCORE, AXIS, EXP2_BIAS) + bias
    elif GROUPS > 1 and GROUP_SCORE == "top2":
        x = score(x, row_max, row_sum, SCORE, AXIS, EXP2_BIAS)
    if GROUPS > 1:
        x = _of_top_groups(ordered(x), column, GROUPS, TOP_GROUPS, EXPERTS, GROUP_SCORE, AXIS)
    return x


@triton.jit
def _of_top_groups(
    x, column, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, EXPERTS: tl.constexpr, GROUP_SCORE: tl.constexpr,
    AXIS: tl.constexpr,
):  # fmt: skip
    """Returns x in the TOP_GROUPS groups with the largest scores, and -inf in the others."""
    column = tl.cast(column, tl.int32)
    group = column // EXPERTS
    left = tl.full(x.shape, -float("inf"), x.dtype)  # the score of each expert's group
    for number in tl.static_range(0, GROUPS):
        of_group = tl.where(group == number, x, -float("inf"))
        best = tl.max(of_group, AXIS)
        if GROUP_SCORE == "top2":
            best += tl.max(without(of_group, column, first_of_largest(of_group, column, AXIS), AXIS), AXIS)
        left = tl.where(group == number, ordered(tl.expand_dims(best, AXIS)), left)
    chosen = tl.full(x.shape, -float("inf"), x.dtype)
    for _ in tl.static_range(0, TOP_GROUPS):
        in_best = group == tl.expand_dims(first_of_largest(left, column, AXIS) // EXPERTS, AXIS)
        chosen = tl.where(in_best, x, chosen)
        left = tl.where(in_best, -float("inf"), left)
    return chosen


@triton.jit
def chosen_score(
    x, position, row_max, row_sum, SCORE: tl.constexpr, TOP: tl.constexpr, AXIS: tl.constexpr,
    EXP2_BIAS: tl.constexpr,
):  # fmt: skip
    """Returns the term of chosen_sum in the gradient: the score of a chosen expert, or 0."""
    return tl.where(position < TOP, score(x, row_max, row_sum, SCORE, AXIS, EXP2_BIAS), 0.0)


@triton.jit
def factor(chosen_sum, eps, scaling_factor, NORMALIZE: tl.constexpr):
    """Returns what the score of a chosen expert is multiplied by."""
    scale = 1.0 if scaling_factor is None else scaling_factor
    if NORMALIZE:
        return scale / _denominator(chosen_sum, eps)
    else:
        return tl.zeros_like(chosen_sum) + scale


@triton.jit
def _denominator(chosen_sum, eps):
    return chosen_sum if eps is None else chosen_sum + eps


@triton.jit
def weight(
    x, row_max, row_sum, factor, SCORE: tl.constexpr, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr
):  # fmt: skip
    """Returns score * factor."""
    return score(x, row_max, row_sum, SCORE, AXIS, EXP2_BIAS) * tl.expand_dims(factor, AXIS)


@triton.jit
def index(column):
    """Returns the chosen expert."""
    return column


@triton.jit
def product(
    x, grad, row_max, row_sum, SCORE: tl.constexpr, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr
):  # fmt: skip
    """Returns the term of dot: the gradient of a weight times the score. The gradient is 0 if there is no weight."""
    return grad * score(x, row_max, row_sum, SCORE, AXIS, EXP2_BIAS)


@triton.jit
def gradient(
    x, position, grad, row_max, row_sum, chosen_sum, dot, factor, eps, SCORE: tl.constexpr, NORMALIZE: tl.constexpr,
    TOP: tl.constexpr, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr,
):  # fmt: skip
    """Returns the gradient of a logit. ds, that of its score, is (grad - dot / denominator) * factor, or 0.

    The gradient through softmax is score * (ds - sum(ds * score)). With weights that are divided by their sum + eps,
    this sum is dot * eps / (sum + eps) * factor.
    """
    s = score(x, row_max, row_sum, SCORE, AXIS, EXP2_BIAS)
    total = dot
    ds = grad
    if NORMALIZE:
        denominator = _denominator(chosen_sum, eps)
        ds -= tl.expand_dims(dot / denominator, AXIS)
        total = tl.zeros_like(dot) if eps is None else dot * eps / denominator
    ds = tl.where(position < TOP, ds, 0.0)
    if SCORE == "softmax":
        return s * (ds - tl.expand_dims(total, AXIS)) * tl.expand_dims(factor, AXIS)
    else:
        large, small = sigmoids(x, EXP2_BIAS)
        slope = large * small if SCORE == "sigmoid" else large / (2.0 * s)
        return tl.where(position < TOP, ds * slope * tl.expand_dims(factor, AXIS), 0.0)
