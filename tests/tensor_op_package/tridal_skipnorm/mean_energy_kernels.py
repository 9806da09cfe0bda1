"""The math of mean energy. Statistics have one value per row."""

import triton
import triton.language as tl


@triton.jit
def square(x):
    """The term of energy."""
    return x * x


@triton.jit
def mean(total, count):
    """The mean of the energies of all rows, which are the columns of one."""
    return total / count


@triton.jit
def gradient(x, share, AXIS: tl.constexpr):
    """2 * x * share, where share is dy / rows."""
    return 2.0 * x * tl.expand_dims(share, AXIS)
