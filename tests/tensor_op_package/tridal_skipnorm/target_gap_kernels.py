"""The math of target gap. Statistics have one value per row."""

import triton
import triton.language as tl


@triton.jit
def gap(picked, total, count, BASE: tl.constexpr):
    """The target's element minus the mean or the sum of its row."""
    return picked - (total / count if BASE == "mean" else total)


@triton.jit
def gradient(
    dy, target, column, count, AXIS: tl.constexpr, BASE: tl.constexpr
):
    """dy * (1 at the target, else 0), minus dy * (1 / count or 1)."""
    share = 1.0 / count if BASE == "mean" else 1.0
    at_target = column == tl.expand_dims(target, AXIS)
    return tl.expand_dims(dy, AXIS) * (tl.where(at_target, 1.0, 0.0) - share)
