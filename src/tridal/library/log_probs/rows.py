"""The tensors of log_probs and token_log_probs with one or several numbers per row: checks, masks and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from tridal.errors import DTypeError, ShapeError
from tridal.library.log_probs.classes import divergence, is_ignored
from tridal.ops import check_floating, check_index, check_shape, check_tensor, wrong
from tridal.pytorch import has_values

Tensor = torch.Tensor
_MASKED = -(2**31) + 1
"""The target of masked rows if no index is ignored. Kernels compare 32 bits of it."""


class PerRow(NamedTuple):
    """The arguments with numbers per row. Only the target is always given."""

    target: Tensor
    ids: Tensor | None = None
    teacher_log_probs: Tensor | None = None
    mask: Tensor | None = None

    def checked(self, op: str, name: str, rows: Tensor) -> PerRow:
        """Returns the tensors with indices in int64, if they fit the tensor `rows` of shape (..., columns)."""
        shape, (target, ids, teacher, mask) = tuple(rows.shape[:-1]), self
        hint = f"an index per row of {name}, which has the shape {tuple(rows.shape)}"
        check_index(op, "target", target)
        check_shape(op, "target", target, shape, hint)
        if ids is not None:
            check_tensor(op, "ids", ids)
            check_index(op, "ids", ids)
            if ids.dim() != len(shape) + 1 or ids.shape[:-1] != shape:
                raise ShapeError(wrong(op, "ids", f"have the shape {(*shape, 'K')}", tuple(ids.shape)))
            ids = ids.long()
        if teacher is not None:
            check_tensor(op, "teacher_log_probs", teacher)
            if ids is None:
                raise ValueError(wrong(op, "teacher_log_probs", "be None without ids", "a tensor"))
            check_floating(op, "teacher_log_probs", teacher)
            check_shape(op, "teacher_log_probs", teacher, tuple(ids.shape), "a number for each of ids")
        if mask is not None:
            check_tensor(op, "mask", mask)
            if mask.dtype is not torch.bool:
                raise DTypeError(wrong(op, "mask", "have the dtype torch.bool", mask.dtype, "use mask.bool()"))
            check_shape(op, "mask", mask, shape, f"a bool per row of {name}, which has the shape {tuple(rows.shape)}")
        return PerRow(target.long(), ids, teacher, mask)  # an ignore_index of -100 would wrap to 156 in uint8

    def flat(self, dims: int) -> PerRow:
        """Merges `dims` into one dim of rows."""
        return self._each(lambda tensor: tensor.reshape(-1, *tensor.shape[dims:]))

    def _each(self, function: Callable[[Tensor], Tensor]) -> PerRow:
        # torch.compile of torch 2.7 traces neither `_make` nor `_replace`.
        others = (self.ids, self.teacher_log_probs, self.mask)
        return PerRow(function(self.target), *[None if tensor is None else function(tensor) for tensor in others])

    def kept(self, input: Tensor) -> Tensor | None:
        """Returns the indices of the rows that are not masked, or None if their number cannot be read."""
        mask = self.mask
        if mask is None or mask.is_meta or not has_values(input, *(tensor for tensor in self if tensor is not None)):
            return None
        module = torch.get_device_module(input.device.type)
        capturing = getattr(module, "is_current_stream_capturing", bool)()
        return None if capturing else mask.nonzero().squeeze(1)

    def selected(self, rows: Tensor) -> PerRow:
        """Selects rows, none of which is masked."""
        return self._replace(mask=None)._each(lambda tensor: tensor.index_select(0, rows))

    def ignoring(self, ignore_index: int | None) -> tuple[PerRow, int | None]:
        """Returns the tensors with ignored targets in masked rows, and the index that is ignored."""
        if self.mask is None:
            return self, ignore_index
        ignore_index = _MASKED if ignore_index is None else ignore_index
        target = torch.where(self.mask, self.target, ignore_index)
        return PerRow(target, self.ids, self.teacher_log_probs), ignore_index

    def results(self, found: Sequence[Tensor | None], ignore_index: int | None) -> list[Tensor]:
        """Returns the results of the function from those of rows: the last one, or None, has numbers of ids."""
        log_prob, entropy, correct, at_ids = found
        kl = None
        if self.teacher_log_probs is not None and at_ids is not None:
            kl = divergence(at_ids, self.teacher_log_probs, is_ignored(self.target, ignore_index))
        results = (log_prob, entropy, at_ids, kl, correct)
        return [result for result in results if result is not None]
