"""The math of log-probabilities, entropies and their gradients. Classes are columns, and each row has a target.

Scores are the logits, capped by SOFTCAP and divided by the temperature. `inverse_temperature` is None for 1. SOFTCAP
and IGNORE_INDEX may be None.
"""

import triton
import triton.language as tl

from tridal.kernels.numerics import exp, finite
from tridal.library.losses.kernels.cross_entropy import capped, through_cap
from tridal.library.softmax.kernels.softmax import rebase


@triton.jit
def _scaled(x, inverse_temperature):
    """x / temperature."""
    return x if inverse_temperature is None else x * inverse_temperature


@triton.jit
def _of_kept(number, index, IGNORE_INDEX: tl.constexpr):
    """Returns numbers of rows, or 0 for a row whose target is ignored."""
    if IGNORE_INDEX is not None:
        number = tl.where(index == IGNORE_INDEX, 0.0, number)
    return number


@triton.jit
def score(x, inverse_temperature, SOFTCAP: tl.constexpr):
    """Returns the score of a logit, the term of row_max."""
    return _scaled(capped(x, SOFTCAP), inverse_temperature)


@triton.jit
def exp_term(
    x, row_max, inverse_temperature, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr, SOFTCAP: tl.constexpr
):  # fmt: skip
    """Returns the term of row_sum: exp(score - row_max)."""
    return exp(score(x, inverse_temperature, SOFTCAP) - tl.expand_dims(finite(row_max), AXIS), EXP2_BIAS)


@triton.jit
def moment_term(
    x, row_max, inverse_temperature, AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr, SOFTCAP: tl.constexpr
):  # fmt: skip
    """Returns the term of moment: exp(score - row_max) * (score - row_max), or 0 for a score of -inf."""
    difference = score(x, inverse_temperature, SOFTCAP) - tl.expand_dims(finite(row_max), AXIS)
    # exp(-1000) is 0 in all dtypes. The argument of exp stays that of `exp_term`, so that it is computed once.
    return exp(difference, EXP2_BIAS) * tl.maximum(difference, -1000.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def rebase_moment(moment, row_sum, part_row_max, row_max, EXP2_BIAS: tl.constexpr):
    """Moves a part's moment from part_row_max to row_max. `row_sum` is the part's, which has been moved before."""
    difference = finite(part_row_max) - finite(row_max)
    moved = tl.where(row_sum == 0, 0.0, row_sum * difference)  # the difference may be infinite
    return rebase(moment, part_row_max, row_max, EXP2_BIAS) + moved


@triton.jit
def first_term(x, column, row_max, inverse_temperature, AXIS: tl.constexpr, SOFTCAP: tl.constexpr):
    """Returns the term of first: minus the column of a score that is row_max, or -inf for a smaller score.

    That of a NaN is positive, because the argmax of a row with NaN is its first NaN. Integers up to 2^24 are exact.
    """
    found, at = score(x, inverse_temperature, SOFTCAP), tl.cast(column, tl.float32)
    kept = tl.where(found == tl.expand_dims(row_max, AXIS), -at, float("-inf"))
    return tl.where(found != found, 16777216.0 - at, kept)


@triton.jit
def rebase_first(first, part_row_max, row_max):
    """Returns first of a part of a row: -inf if the maximum is in another part."""
    return tl.where((first > 0) | (part_row_max == row_max), first, float("-inf"))


@triton.jit
def log_sum(row_sum):
    """log(row_sum). log(p) is score - row_max - log_sum, which rounds less than score - (row_max + log_sum)."""
    return tl.log(row_sum)


@triton.jit
def log_prob(
    index, picked, row_max, log_sum, inverse_temperature, IGNORE_INDEX: tl.constexpr, SOFTCAP: tl.constexpr
):  # fmt: skip
    """Returns log(p) of the target."""
    return _of_kept((score(picked, inverse_temperature, SOFTCAP) - row_max) - log_sum, index, IGNORE_INDEX)


@triton.jit
def entropy(index, row_sum, log_sum, moment, IGNORE_INDEX: tl.constexpr):
    """-sum(p * log(p)) = log_sum - moment / row_sum."""
    return _of_kept(log_sum - moment / row_sum, index, IGNORE_INDEX)


@triton.jit
def correct(index, first, IGNORE_INDEX: tl.constexpr):
    """Returns 1 if the target is the argmax, or 0."""
    argmax = tl.where(first > 0, 16777216.0 - first, -first)
    return _of_kept(tl.where(tl.cast(argmax, tl.int64) == index, 1.0, 0.0), index, IGNORE_INDEX)


@triton.jit
def target_gradient(index, grad, count, IGNORE_INDEX: tl.constexpr):
    """Returns grad: 0 if the target is ignored, NaN if it is not one of the classes."""
    valid = (index >= 0) & (index < tl.cast(count, tl.int64))
    return _of_kept(tl.where(valid, grad, float("nan")), index, IGNORE_INDEX)


@triton.jit
def gradient(
    x, index, column, row_max, row_log_sum, entropy_grad, row_entropy, target_gradient, inverse_temperature,
    AXIS: tl.constexpr, EXP2_BIAS: tl.constexpr, IGNORE_INDEX: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    """The gradient of a logit, for the gradients of the row's log-probability and of its entropy.

    That of the score is grad * (1 of the target - p) - entropy_grad * p * (log(p) + entropy). It is zero for an ignored
    target, also if the row holds NaN or infinity.
    """
    log_p = score(x, inverse_temperature, SOFTCAP) - tl.expand_dims(row_max, AXIS) - tl.expand_dims(row_log_sum, AXIS)
    p = exp(log_p, EXP2_BIAS)
    peak = tl.expand_dims(target_gradient, AXIS)
    dx = tl.where(column == tl.expand_dims(index, AXIS), peak, 0.0) - p * peak
    if entropy_grad is not None:
        deviation = tl.where(p == 0, 0.0, log_p + tl.expand_dims(row_entropy, AXIS))
        dx -= p * deviation * tl.expand_dims(entropy_grad, AXIS)
    return _of_kept(
        through_cap(_scaled(dx, inverse_temperature), x, SOFTCAP), tl.expand_dims(index, AXIS), IGNORE_INDEX
    )
