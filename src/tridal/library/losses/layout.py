"""How the logits lie in memory: the view in which kernels read them, and the strides of their gradient."""

from __future__ import annotations

import torch

from tridal.library.losses.maths import classes_dim
from tridal.pytorch import Steps

Tensor = torch.Tensor


def rows_last(input: Tensor) -> tuple[Tensor, int] | None:
    """Returns the input or its view with the classes last, whichever is contiguous, and the dim of the classes."""
    if input.is_neg():
        return None
    if input.is_contiguous() or input.dim() == 1:
        return (input, classes_dim(input)) if input.is_contiguous() else None
    moved = input.movedim(1, -1)
    return (moved, moved.dim() - 1) if moved.is_contiguous() else None


def new_gradient(input: Tensor) -> Tensor:
    """Returns a new tensor with the strides of the logits if classes are the first or the last dim in memory.

    For other strides, it is contiguous.
    """
    x, dim = rows_last(input) or (input, classes_dim(input))
    return input.new_empty(x.shape).movedim(dim, classes_dim(input))


class Layout:
    """Views of tensors of the logits' shape with at least two dims, in which kernels read the classes along `dim`."""

    def __init__(self, call: Steps, input: Tensor) -> None:
        found = rows_last(input)
        self.dim = 1 if found is None else max(found[1], 1)
        self._call, self._moved, self.one_row = call, found is not None and found[1] > 1, input.dim() == 1

    def of(self, tensor: Tensor) -> Tensor:
        """Returns the view of a tensor of the logits' shape."""
        if self.one_row:
            return self._call.view(Tensor.unsqueeze, tensor, 0)  # type: ignore[no-any-return]
        return self._call.view(Tensor.movedim, tensor, 1, self.dim) if self._moved else tensor

    def restored(self, tensor: Tensor) -> Tensor:
        """Returns the view of a kernel's output in the logits' shape."""
        if self.one_row:
            return self._call.view(Tensor.squeeze, tensor, 0)  # type: ignore[no-any-return]
        return self._call.view(Tensor.movedim, tensor, self.dim, 1) if self._moved else tensor

    def index(self, target: Tensor) -> Tensor:
        """Returns the target indices, in one dim for logits of one row."""
        return self._call.view(Tensor.reshape, target, 1) if self.one_row else target
