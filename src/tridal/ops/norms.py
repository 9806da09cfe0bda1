"""What RMSNorm and LayerNorm have in common: the sum with a residual, and the dtypes of statistics and results."""

from __future__ import annotations

import math
from typing import Any

import torch

Tensor = torch.Tensor


class RowSum:
    """Sums over the last dim, which is kept with size 1. A subclass sums over ranks as well."""

    def __init__(self, count: int) -> None:
        self.count = count
        """Number of elements of a row."""

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the sum of each row."""
        return x.sum(-1, keepdim=True)

    def mean(self, x: Tensor) -> Tensor:
        """Returns the mean of each row."""
        return self(x) / self.count


def row_sum(x: Tensor, dims: int) -> RowSum:
    """Returns the `RowSum` of a tensor whose last `dims` dims are normalised."""
    return RowSum(math.prod(x.shape[x.dim() - dims :]))


def sum_dtype(input: Tensor, residual: Tensor | None) -> torch.dtype:
    """Returns the dtype of input + residual."""
    return input.dtype if residual is None else torch.promote_types(input.dtype, residual.dtype)


def statistics_dtype(*tensors: Tensor | None) -> torch.dtype:
    """Returns the dtype of statistics: float64 if a tensor is float64, else float32."""
    return torch.float64 if any(t is not None and t.dtype is torch.float64 for t in tensors) else torch.float32


def widened(x: Tensor | None, dtype: torch.dtype, dims: int) -> Any:
    """Returns the tensor in `dtype`, with its last `dims` dims as one. Returns None for None."""
    return None if x is None else x.flatten(-dims).to(dtype)


def column_sum(term: Tensor) -> Tensor:
    """Returns the sum of a term over all rows."""
    return term.flatten(0, -2).sum(0) if term.dim() > 1 else term


def gradient_of_sum(dsum: Tensor | None, x: Tensor) -> Tensor | None:
    """Returns the gradient of the sum x, or None. A call without a residual has an empty tensor instead of a sum."""
    return dsum if dsum is not None and dsum.shape == x.shape else None
