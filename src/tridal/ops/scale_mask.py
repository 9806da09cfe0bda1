"""What `scale`, `mask`, `causal` and `masked_rows` mean, what can be wrong with them, and the same by torch's ops.

A kernel does the same in its one pass where there is one; what is composed goes with everything that torch's ops do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from tridal.errors import DimensionError, DTypeError


class Extras(NamedTuple):
    """What is done to scores before their softmax."""

    scale: float
    mask: torch.Tensor | None
    """Added if it is floating; if it is boolean, what is False is left out."""
    causal: bool
    """Whether query i, along the last but one dimension, has columns 0 to i alone."""
    masked_rows: str
    """What a row is of which nothing is left: "nan", as torch's, or "zero"."""

    @property
    def zero(self) -> bool:
        """Whether such a row is zero."""
        return self.masked_rows == "zero"


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
    softmax: Callable[[torch.Tensor, int], torch.Tensor],
    input: torch.Tensor,
    dim: int,
    dtype: torch.dtype,
    extras: Extras,
) -> torch.Tensor:
    """softmax(scores) in `dtype`, weighed in float32 or wider; differentiable by all that is a tensor."""
    wide = torch.promote_types(dtype, torch.float32)
    x = input.to(dtype).to(wide) * extras.scale
    kept = None
    if extras.mask is not None and extras.mask.dtype is torch.bool:
        kept = extras.mask
    elif extras.mask is not None:
        x = x + extras.mask.to(wide)
    if extras.causal:
        below = torch.ones(input.shape[-2:], dtype=torch.bool, device=input.device).tril()
        kept = below if kept is None else kept & below
    if kept is not None:
        x = x.masked_fill(~kept, -torch.inf)
    if not extras.zero:
        return softmax(x, dim).to(dtype)
    nothing = (x == -torch.inf).all(dim, keepdim=True)
    return softmax(x.masked_fill(nothing, 0.0), dim).masked_fill(nothing, 0.0).to(dtype)
