"""The math of the loss of all rows: the sum of their losses, or their mean. The rows are the columns of one row."""

import triton
import triton.language as tl


@triton.jit
def row_weight(x, target, weight, IGNORE_INDEX: tl.constexpr):
    """Returns the weight of a row in the mean, the term of weight_sum: zero if its target is ignored."""
    number = tl.where(target == IGNORE_INDEX, 0.0, 1.0 if weight is None else weight)
    return number + tl.zeros_like(x)


@triton.jit
def weighted_mean(loss_sum, weight_sum):
    """Returns the sum of the losses, over that of the weights."""
    return loss_sum / weight_sum
