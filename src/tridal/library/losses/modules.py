"""Modules of cross-entropy that call tridal, with the signatures of torch's modules and their state dicts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from tridal.errors import unexpected
from tridal.library.losses.checks import check_numbers
from tridal.library.losses.functions import cross_entropy, linear_cross_entropy
from tridal.library.losses.linear_cross_entropy import LINEAR_CROSS_ENTROPY
from tridal.ops import check_shape

Tensor = torch.Tensor


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss, computed by `tridal.cross_entropy`, which describes the keyword-only arguments.

    Example:
        >>> loss = tridal.nn.CrossEntropyLoss(softcap=30.0)
        >>> loss(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]))
        tensor(0.2402)
    """

    def __init__(
        self, weight: Tensor | None = None, size_average: Any = None, ignore_index: int = -100, reduce: Any = None,
        reduction: str = "mean", label_smoothing: float = 0.0, *, z_loss: float = 0.0, softcap: float | None = None,
        **removed: Any,
    ) -> None:  # fmt: skip
        if removed:
            raise unexpected(CrossEntropyLoss, removed)
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        self.z_loss, self.softcap = z_loss, softcap

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of logits (C,), (N, C) or (N, C, d1, ...)."""
        reduction: Any = self.reduction
        return cross_entropy(
            input, target, self.weight, ignore_index=self.ignore_index, reduction=reduction,
            label_smoothing=self.label_smoothing, z_loss=self.z_loss, softcap=self.softcap,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """The arguments, except those of the submodule `linear`."""
        given = {"z_loss": (self.z_loss, 0.0), "softcap": (self.softcap, None)}
        return ", ".join(f"{name}={value}" for name, (value, default) in given.items() if value != default)


if TYPE_CHECKING:
    _Linear = torch.nn.Module
else:
    _Linear = getattr(torch.nn, "LinearCrossEntropyLoss", torch.nn.Module)
_OPTIONS = ("reduction", "ignore_index", "label_smoothing", "z_loss", "softcap", "chunk_size", "accum_dtype")


class LinearCrossEntropyLoss(_Linear):
    """torch.nn.LinearCrossEntropyLoss, computed by `tridal.linear_cross_entropy`, for every version of torch.

    The linear layer is the submodule `linear`. Its weight has the shape (num_classes * prod(out_features),
    in_features). `tridal.linear_cross_entropy` describes the other arguments. torch's `options` is not one of them:
    `chunk_size` and `accum_dtype` take its place.

    Example:
        >>> loss = tridal.nn.LinearCrossEntropyLoss(in_features=3, num_classes=4)
        >>> loss(torch.zeros(2, 3), torch.tensor([0, 3])).item()  # all classes have the same probability: log(4)
        1.386294...
    """

    weight: Tensor | None

    def __init__(
        self, in_features: int, num_classes: int, *, out_features: tuple[int, ...] = (), bias: bool = False,
        device: Any = None, dtype: torch.dtype | None = None, reduction: str = "mean", weight: Tensor | None = None,
        ignore_index: int | None = None, label_smoothing: float = 0.0, z_loss: float = 0.0,
        softcap: float | None = None, chunk_size: int | None = None, accum_dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        op = LINEAR_CROSS_ENTROPY.name
        if weight is not None:
            check_shape(op, "weight", weight, (num_classes,), "a number per class")
        check_numbers(op, label_smoothing=label_smoothing)
        torch.nn.Module.__init__(self)
        self.register_buffer("weight", weight)
        self.reduction: Any = reduction
        self.num_classes, self.out_features, self.ignore_index = num_classes, out_features, ignore_index
        self.label_smoothing, self.z_loss, self.softcap = label_smoothing, z_loss, softcap
        self.chunk_size, self.accum_dtype, self.options = chunk_size, accum_dtype, None
        rows = math.prod(out_features, start=num_classes)
        self.linear = torch.nn.Linear(in_features, rows, bias=bias, device=device, dtype=dtype)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of inputs (H,), (N, H) or (B, T, H)."""
        shape, layer = (self.num_classes, *self.out_features), self.linear
        matrix, bias = layer.weight.view(*shape, layer.in_features), layer.bias
        options = {name: getattr(self, name) for name in _OPTIONS}
        return linear_cross_entropy(
            input, matrix, target, linear_bias=None if bias is None else bias.view(shape), weight=self.weight, **options
        )

    def extra_repr(self) -> str:
        """The arguments, except those of the submodule `linear`."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in ("num_classes", "out_features", *_OPTIONS))
