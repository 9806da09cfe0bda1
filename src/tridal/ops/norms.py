"""Functions of RMSNorm and LayerNorm: the sum with a residual, and views of tensors with one dim of columns."""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor


def sum_dtype(input: Tensor, residual: Tensor | None) -> torch.dtype:
    """Returns the dtype of input + residual."""
    return input.dtype if residual is None else torch.promote_types(input.dtype, residual.dtype)


def widened(x: Tensor | None, dtype: torch.dtype, dims: int) -> Any:
    """Returns the tensor in `dtype`, with its last `dims` dims as one. Returns None for None."""
    return None if x is None else x.flatten(-dims).to(dtype)


def column_sum(term: Tensor) -> Tensor:
    """Returns the sum of a term over all rows."""
    return term.flatten(0, -2).sum(0) if term.dim() > 1 else term


def gradient_of_sum(dsum: Tensor | None, x: Tensor) -> Tensor | None:
    """Returns the gradient of the sum x, or None. A call without a residual has an empty tensor instead of a sum."""
    return dsum if dsum is not None and dsum.shape == x.shape else None
