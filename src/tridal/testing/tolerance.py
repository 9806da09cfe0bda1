"""How far a result may lie from the exact one. Every bound follows from the rounding of dtypes; none is fitted.

u is the unit roundoff of a dtype: storing v is wrong by at most u |v|, or by `tiny` where v is subnormal. For a row of
N elements with maximum m, let d = m - x >= 0, and let a be the u of the dtype that sums are kept in. To first order:

    x - m          one rounding: an error of a d, which `exp` turns into a relative one
    exp            a relative error of a few a, and of about a d again where it is 2^(d log2 e)
    sum            of N positive terms, as a tree: log2 N roundings. Its terms err by 2 a d each, weighted with their
                   share of the sum: on average at most 2 a ln N, since the mean of d over a softmax is at most ln N
    division, log  a few a

which makes the NOISE below: generous by a factor of about two in each term, and still a thousand times finer than a sum
that is kept in bfloat16. `tests/test_testing.py` shows what the bounds catch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""Unit roundoff, rounding to nearest."""

TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
"""Error of storing a subnormal: float16 keeps its subnormals everywhere, some devices flush the others to zero."""

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """With what precision a row is computed and its result stored."""

    unit: float
    """u of what is stored; of the coarser one, where a gradient is stored in another dtype than the result."""
    tiny: float
    accumulator: float
    """a; twice that for float64, where the reference itself is no better."""
    cols: int
    sum_roundings: float

    @classmethod
    def of(cls, stored: tuple[str, ...], sums: str, cols: int, interpreted: bool, rows: bool) -> Arithmetic:
        """For results stored in these dtypes and computed for the dtype `sums`, along contiguous rows or not.

        Triton's interpreter differs in two ways: float32 is cut off on its way to bfloat16, not rounded; and along any
        axis but the last, NumPy adds one element after the other.
        """
        units = [UNIT[dtype] * (2 if interpreted and dtype == "bfloat16" else 1) for dtype in stored]
        return cls(
            unit=max(units),
            tiny=max(TINY[dtype] for dtype in stored),
            accumulator=2 * UNIT["float64"] if sums == "float64" else UNIT["float32"],
            cols=cols,
            sum_roundings=float(cols) if interpreted and not rows else math.log2(max(cols, 1)),
        )

    def noise(self, distance: Tensor) -> Tensor:
        """NOISE: relative error of exp(x - m) / sum."""
        return self.accumulator * (4 * distance + self.sum_roundings + 3 * math.log2(max(self.cols, 1)) + 16)


def forward(log: bool, x: Tensor, y: Tensor, dim: int, arithmetic: Arithmetic, scaled: Tensor | None = None) -> Tensor:
    """Bound for Y. softmax errs relatively; log_softmax absolutely, as log(1 + e) is about e.

    `scaled` is what x was before something was added to it. To round it twice, with its factor, and x once makes an
    error in x, which `exp` turns into a relative one; that of the sum is the mean over the softmax.
    """
    if log:
        return y.abs() * arithmetic.unit + arithmetic.noise(_distance(x, dim) + y.abs())
    noise = arithmetic.noise(_distance(x, dim))
    if scaled is not None:
        shift = torch.where(x.isfinite(), arithmetic.accumulator * (2 * scaled.abs() + x.abs()), 0.0)
        noise = noise + shift + (y * shift).sum(dim, keepdim=True)
    return y * (arithmetic.unit + noise) + arithmetic.tiny


def backward(
    log: bool, y: Tensor, dy: Tensor, dx: Tensor, dim: int, arithmetic: Arithmetic, scale: float = 1.0
) -> Tensor:
    """Bound for dX as it follows from the stored Y, whose own error is the forward's affair; all is times `scale`."""
    if log:  # dX = dY - exp(Y) sum(dY)
        total = dy.abs().sum(dim, keepdim=True)
        size = dy.abs() + y.exp() * total * (1 + y.abs().nan_to_num(posinf=0))
    else:  # dX = Y (dY - sum(Y dY))
        size = y * (dy.abs() + (y * dy.abs()).sum(dim, keepdim=True))
    return arithmetic.unit * dx.abs() + arithmetic.noise(torch.zeros(())) * abs(scale) * size + arithmetic.tiny


def second_order(log: bool, dy: Tensor, dim: int, arithmetic: Arithmetic) -> Tensor:
    """Bound for the gradient of sum(dX^2): five sums of products, no term of which exceeds the square named here."""
    largest = dy.abs().sum(dim, keepdim=True) if log else dy.abs().amax(dim, keepdim=True)
    return (2 * arithmetic.noise(torch.zeros(())) * largest.square()).expand_as(dy)


def _distance(x: Tensor, dim: int) -> Tensor:
    return x.amax(dim, keepdim=True) - x if x.numel() else x
