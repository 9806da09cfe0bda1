"""Reductions of rows in torch's ops, and the dtype of sums and statistics."""

from __future__ import annotations

from typing import Literal

import torch


class RowReduce:
    """Reduces rows along a dim: `reduce(x, "max")`, `reduce(x, "sum")` or `reduce.mean(x)`."""

    count: int
    """Number of elements of a row."""

    def __init__(self, x: torch.Tensor, dim: int) -> None:
        self.count = x.shape[dim]
        self._dim = dim

    def __call__(self, x: torch.Tensor, how: Literal["max", "sum"]) -> torch.Tensor:
        """Returns the maximum or the sum of each row. The dim is kept with size 1."""
        if how == "sum" or self.count == 0:  # amax rejects empty rows; their sum is never used
            return x.sum(self._dim, keepdim=True)
        return x.amax(self._dim, keepdim=True)

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the mean of each row. The dim is kept with size 1."""
        return self(x, "sum") / self.count


def accumulator(*given: torch.Tensor | torch.dtype | None) -> torch.dtype:
    """Returns the dtype of sums and statistics: float64 if one of the tensors or dtypes is float64, else float32."""
    dtypes = [given.dtype if isinstance(given, torch.Tensor) else given for given in given]
    return torch.float64 if torch.float64 in dtypes else torch.float32
