"""Scale, mask and causal masking of scores: the arguments, their checks, and the computation in torch's ops."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from tridal.errors import DimensionError, DTypeError, LayoutError, ShapeError, TensorDeviceError
from tridal.ops.argument_checks import check_bool, check_choice, check_number, check_tensor, wrong


class ScoreModification(NamedTuple):
    """Scale, mask and causal masking that are applied to scores before an op."""

    scale: float
    mask: torch.Tensor | None
    """A floating-point mask is added. Elements where a boolean mask is False are excluded."""
    causal: bool
    """Whether query i sees columns 0 to i only. The second to last dim holds the queries."""
    zero_masked_rows: bool
    """Whether the result is zero for a row whose scores are all excluded. Otherwise it is NaN."""


def check_scale_mask(
    op: str, input: torch.Tensor, dim: int, scale: object, mask: Any, causal: object, masked_rows: object
) -> None:
    """Checks the scale and mask arguments of an op.

    Raises:
        LayoutError: a mask for a nested tensor, or a mask that is nested or sparse.
        TypeError, ValueError: an argument has a wrong type or value.
        DTypeError: the mask is neither boolean nor floating-point.
        DimensionError: `causal` without a dim of queries.
        ShapeError: the mask cannot be broadcast to the input.
        TensorDeviceError: the mask is on another device than the input.

    Example:
        >>> tridal.ops.check_scale_mask("softmax", torch.ones(2, 2), -1, "2", None, False, "nan")
        Traceback (most recent call last):
        TypeError: softmax: scale must be a number, got '2'
    """
    check_bool(op, "causal", causal)
    shape = () if input.is_nested else tuple(input.shape)
    if (mask is not None or causal or masked_rows != "nan") and input.is_nested:
        expected = "be a dense tensor with mask, causal or masked_rows"
        raise LayoutError(wrong(op, "input", expected, "a nested one", "use input.to_padded_tensor(-torch.inf)"))
    if causal and (input.dim() < 2 or dim % input.dim() != input.dim() - 1):
        expected = f"be -1 of at least two dims, queries by keys, with causal=True and input of shape {shape}"
        raise DimensionError(wrong(op, "dim", expected, dim))
    check_choice(op, "masked_rows", masked_rows, ("nan", "zero"))
    check_number(op, "scale", scale)
    if mask is None:
        return
    check_tensor(op, "mask", mask, optional=True)
    if mask.dtype is not torch.bool and not mask.is_floating_point():
        expected = "have a boolean dtype (True stays) or a floating-point dtype (added)"
        raise DTypeError(wrong(op, "mask", expected, mask.dtype))
    added = input.dim() - mask.dim()  # torch 2.7 compiles `zip` for equal lengths only
    if added < 0 or any(size not in (1, wanted) for size, wanted in zip(mask.shape, shape[added:], strict=True)):
        expected = f"have a shape that can be broadcast to {shape}, the shape of input"
        raise ShapeError(wrong(op, "mask", expected, tuple(mask.shape)))
    if mask.dim() and mask.device != input.device:
        raise TensorDeviceError(wrong(op, "mask", f"be on {input.device}, as input is", mask.device))


def modify_scores(
    x: torch.Tensor, dim: int, modification: ScoreModification
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the modified scores in x's dtype, and a boolean tensor of the rows whose result must be zero, or None."""
    x = x * modification.scale
    kept = None
    if modification.mask is not None and modification.mask.dtype is torch.bool:
        kept = modification.mask
    elif modification.mask is not None:
        x = x + modification.mask.to(x.dtype)
    if modification.causal:
        lower = x.new_ones(x.shape[-2:], dtype=torch.bool).tril()  # a DTensor for a DTensor
        kept = lower if kept is None else kept.logical_and(lower)  # `&` is wrong for DTensors below autograd
    if kept is not None:
        x = x.masked_fill(~kept, -torch.inf)
    if not modification.zero_masked_rows:
        return x, None
    empty = (x != -torch.inf).sum(dim, keepdim=True) == 0  # torch 2.7's `all` is wrong for a sharded dim of a DTensor
    return x.masked_fill(empty, 0.0), empty
