"""RMSNorm and LayerNorm modules that call tridal. They are subclasses of torch's, with the same state dicts."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor

from tridal.library.norms.checks import check_scaling
from tridal.library.norms.functions import Casting, layer_norm, rms_norm
from tridal.library.norms.norms import LAYER_NORM, RMS_NORM


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm, computed by `tridal.rms_norm`, which describes `weight_offset` and `casting`.

    `normalized_shape` is an int or a tuple of ints. The weight has this shape, and is initialized to 1 - weight_offset.

    Example:
        >>> norm = tridal.nn.RMSNorm(2, weight_offset=1.0).requires_grad_(False)
        >>> norm.weight, norm(torch.tensor([[3.0, 4.0]]))
        (Parameter containing:
        tensor([0., 0.]), tensor([[0.8485, 1.1314]]))
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        weight_offset: float = 0.0,
        casting: Casting = None,
    ) -> None:
        check_scaling(RMS_NORM.name, weight_offset, casting)
        self.weight_offset = float(weight_offset)
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self.casting = casting

    def reset_parameters(self) -> None:
        """Sets the weight so that its sum with `weight_offset` is one."""
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 1 - self.weight_offset)

    @overload
    def forward(self, x: Tensor, residual: None = None) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]: ...
    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """The normalized x; with a `residual`, the normalized sum and the sum."""
        return rms_norm(
            x, self.normalized_shape, self.weight, self.eps, residual=residual, weight_offset=self.weight_offset,
            casting=self.casting,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """torch's text, and the arguments that torch's module does not have."""
        text = super().extra_repr()
        text += f", weight_offset={self.weight_offset:g}" if self.weight_offset else ""
        return text + (f", casting={self.casting!r}" if self.casting else "")


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm, computed by `tridal.layer_norm`, which describes `weight_offset`.

    The weight is initialized to 1 - weight_offset.

    Example:
        >>> norm = tridal.nn.LayerNorm(3).requires_grad_(False)
        >>> y, total = norm(torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 3))
        >>> y, total
        (tensor([[-1.2247,  0.0000,  1.2247]]), tensor([[2., 3., 4.]]))
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        weight_offset: float = 0.0,
    ) -> None:
        check_scaling(LAYER_NORM.name, weight_offset)
        self.weight_offset = float(weight_offset)
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)

    def reset_parameters(self) -> None:
        """Sets the weight so that its sum with `weight_offset` is one, and the bias to zero."""
        super().reset_parameters()
        if self.elementwise_affine and self.weight_offset:
            torch.nn.init.constant_(self.weight, 1 - self.weight_offset)

    @overload
    def forward(self, input: Tensor, residual: None = None) -> Tensor: ...
    @overload
    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]: ...
    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """The normalized input; with a `residual`, the normalized sum and the sum."""
        return layer_norm(
            input, self.normalized_shape, self.weight, self.bias, self.eps, residual=residual,
            weight_offset=self.weight_offset,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """torch's text, and the offset."""
        return super().extra_repr() + (f", weight_offset={self.weight_offset:g}" if self.weight_offset else "")
