"""Error bounds of softmax and log_softmax, for the conformance suite. `tridal.testing.tolerance` derives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tridal.ops import RowReduce

if TYPE_CHECKING:
    from tridal.testing import Arithmetic

Tensor = torch.Tensor


@dataclass(frozen=True)
class SoftmaxBounds:
    """Bounds of the absolute error of each element of softmax, or of log_softmax if `log` is true."""

    log: bool

    @property
    def any_values(self) -> bool:
        """Whether all float32 inputs have a float32 result. log_softmax computes differences, which may overflow."""
        return not self.log

    def forward(self, x: Tensor, y: Tensor, dim: int, arithmetic: Arithmetic, scaled: Tensor | None = None) -> Tensor:
        """Returns the bound for Y. It is relative for softmax, but absolute for log_softmax: log(1 + e) is about e.

        `scaled` is x before a mask was added. Scaling and adding the mask round x twice. exp turns this error of x into
        a relative error of a term. The relative error of the sum is the mean of these, weighted by the softmax.
        """
        distance = RowReduce(x, dim)(x, "max") - x
        if self.log:
            return y.abs() * arithmetic.unit + arithmetic.noise(distance + y.abs())
        noise = arithmetic.noise(distance)
        if scaled is not None:
            shift = torch.where(x.isfinite(), arithmetic.accumulator * (2 * scaled.abs() + x.abs()), 0.0)
            noise = noise + shift + (y * shift).sum(dim, keepdim=True)
        return y * (arithmetic.unit + noise) + arithmetic.tiny

    def backward(
        self, y: Tensor, dy: Tensor, dx: Tensor, dim: int, arithmetic: Arithmetic, scale: float = 1.0
    ) -> Tensor:
        """Returns the bound for dX, given the stored Y. The whole gradient is multiplied by `scale`."""
        if self.log:  # dX = dY - exp(Y) sum(dY)
            size = dy.abs() + y.exp() * dy.abs().sum(dim, keepdim=True) * (1 + y.abs().nan_to_num(posinf=0))
        else:  # dX = Y (dY - sum(Y dY))
            size = y * (dy.abs() + (y * dy.abs()).sum(dim, keepdim=True))
        return arithmetic.unit * dx.abs() + arithmetic.noise(torch.zeros(())) * abs(scale) * size + arithmetic.tiny
