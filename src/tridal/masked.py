"""softmax of scores that are scaled and masked on the way: one pass over them where a kernel can, else composed.

The kernel serves plain tensors in eager code: contiguous rows along the last dimension, a mask that is broadcast over
the dimensions before. What is composed from torch's ops and `tridal.softmax` means the same under every transform.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tridal import autograd
from tridal.arguments import check
from tridal.errors import DimensionError, DTypeError
from tridal.fusing import Extras, fused
from tridal.places import Place


def check_extras(input: torch.Tensor, dim: int, extras: Extras) -> None:
    """Raises what is wrong with the extras.

    Raises:
        TypeError, ValueError, DTypeError: an extra is not of its kind; the mask is neither boolean nor floating.
        DimensionError: causal without queries, or a mask that can't be broadcast to the input.
    """
    if extras.causal and (input.dim() < 2 or dim % input.dim() != input.dim() - 1):
        raise DimensionError(
            f"causal=True needs queries by keys: dim -1 of two or more, got dim {dim} of {input.dim()}"
        )
    if extras.masked_rows not in ("nan", "zero"):
        raise ValueError(f"masked_rows must be 'nan' or 'zero', got {extras.masked_rows!r}")
    if isinstance(extras.scale, bool) or not isinstance(extras.scale, (int, float)):
        raise TypeError(f"scale must be a number, got {extras.scale!r}")
    mask = extras.mask
    if mask is None:
        return
    if not isinstance(mask, torch.Tensor):
        raise TypeError(f"mask must be a torch.Tensor, got {type(mask).__name__}")
    if mask.dtype is not torch.bool and not mask.is_floating_point():
        raise DTypeError(f"mask must be boolean (True stays) or floating (added), got {mask.dtype}")
    sizes = zip(reversed(mask.shape), reversed(input.shape), strict=False)
    if mask.dim() > input.dim() or any(size not in (1, wanted) for size, wanted in sizes):
        raise DimensionError(
            f"a mask of shape {tuple(mask.shape)} can't be broadcast to the input's {tuple(input.shape)}"
        )


def composed(
    softmax: Callable[[torch.Tensor], torch.Tensor], input: torch.Tensor, dim: int, extras: Extras
) -> torch.Tensor:
    """softmax(scores) of an input that is in the dtype to compute in."""
    x = input * extras.scale
    kept = None
    if extras.mask is not None and extras.mask.dtype is torch.bool:
        kept = extras.mask
    elif extras.mask is not None:
        x = x + extras.mask
    if extras.causal:
        below = torch.ones(input.shape[-2:], dtype=torch.bool, device=input.device).tril()
        kept = below if kept is None else kept & below
    if kept is not None:
        x = x.masked_fill(~kept, -torch.inf)
    if not extras.zero:
        return softmax(x)
    nothing = (x == -torch.inf).all(dim, keepdim=True)
    return softmax(x.masked_fill(nothing, 0.0)).masked_fill(nothing, 0.0)


class Masked(autograd.Node):
    """The node of a plain tensor: apply(input, run, backward call, scale)."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, run: Callable[..., Any], key: Any, scale: float) -> torch.Tensor:
        """Runs the prepared call."""
        output: torch.Tensor = run(input)
        ctx.save_for_backward(output)
        ctx.key = key
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """scale * Y * (dY - sum(Y * dY)): where something was masked, Y is zero and so is this."""
        (output,) = ctx.saved_tensors
        dim, dtype = ctx.key
        return autograd.gradient("softmax", grad, output, dim, dtype) * ctx.scale, None, None, None


def softmax(
    plain: Callable[..., torch.Tensor], place: Place | None, input: torch.Tensor, dim: int, dtype: torch.dtype | None,
    extras: Extras,
) -> torch.Tensor:  # fmt: skip
    """The softmax of weighed scores: by the kernel at `place` if one does it, else composed around `plain`."""
    check(input, dim, dtype)
    check_extras(input, dim, extras)
    wanted = dtype or input.dtype
    run = None if place is None else fused(place, input, dim, wanted, extras)
    if run is None:
        accumulator = torch.promote_types(wanted, torch.float32)
        if input.is_floating_point():
            accumulator = torch.promote_types(accumulator, input.dtype)
        return composed(lambda x: plain(x, dim), input.to(accumulator), dim, extras).to(wanted)
    if input.requires_grad and torch.is_grad_enabled():
        return Masked.apply(input, run, (dim % input.dim(), input.dtype), extras.scale)
    return run(input)
