"""Reductions of rows in torch's ops, and the dtype of sums and statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch.autograd import forward_ad


class RowReduce:
    """Reduces rows along a dim: `reduce(x, "max")`, `reduce(x, "sum")` or `reduce.mean(x)`."""

    count: int
    """Number of elements of a row."""
    rows: int
    """Number of rows."""
    dim: int
    """The dim of a row."""
    sharded = False
    """Whether rows are sharded over ranks, so that each rank has a part of each row, or of all rows."""
    dtypes: Mapping[str, torch.dtype]
    """The dtypes of the tensors of a call, by name. A reference gets them in the dtype of sums."""

    def __init__(self, x: torch.Tensor, dim: int) -> None:
        self.count, self.dim = x.shape[dim], dim
        self.rows = math.prod(x.shape[:dim]) * math.prod(x.shape[dim:][1:])

    def __call__(self, x: torch.Tensor, how: Literal["max", "sum"]) -> torch.Tensor:
        """Returns the maximum or the sum of each row. The dim is kept with size 1.

        Both are NaN if an element is NaN. The "max" of a kernel may ignore NaN.
        """
        if how == "sum" or self.count == 0:  # amax rejects empty rows; their sum is never used
            return x.sum(self.dim, keepdim=True)
        return x.amax(self.dim, keepdim=True)

    def total(self, x: torch.Tensor) -> torch.Tensor:
        """Adds a number per row over all rows. The sum has no dims."""
        return x.sum()

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        """The mean of each row. Keeps the dim with size 1."""
        return self(x, "sum") / self.count

    def columns(self, x: torch.Tensor) -> torch.Tensor:
        """The column of each element, as an int64 tensor that can be broadcast to x."""
        shape = [1] * x.dim()
        shape[self.dim] = self.count
        return x.new_ones(shape, dtype=torch.int64).cumsum(self.dim) - 1  # a DTensor for a DTensor

    def rounded(self, x: torch.Tensor, dtype: torch.dtype, result: str | None = None) -> torch.Tensor:
        """Returns x rounded to a dtype, in x's own dtype. `result` is the name of the op's result with these numbers.

        A reference rounds with it what a kernel stores or casts before it goes on, so that both compute the same. With
        `result`, the conformance suite replaces the numbers by those that the kernel has stored, and computes what
        follows from them.
        """
        return x.to(dtype).to(x.dtype)


def has_tangent(*tensors: torch.Tensor | None, level: int | None = None) -> bool:
    """Returns whether one of the tensors has a tangent of forward-mode AD, by default at the current level.

    torch's softmax, log_softmax and logsumexp, and functions of them, compute a tangent in place, so the tangent has no
    gradient. References compute tensors with tangents in smaller operations.

    Example:
        >>> with torch.autograd.forward_ad.dual_level():
        ...     x = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))
        ...     print(tridal.ops.has_tangent(x), tridal.ops.has_tangent(torch.ones(2)))
        True False
    """
    unpack: Any = forward_ad.unpack_dual
    try:
        return any(tensor is not None and unpack(tensor, level=level).tangent is not None for tensor in tensors)
    except NotImplementedError:  # a DTensor of torch 2.7, which cannot have a tangent
        return False


def accumulator(*given: torch.Tensor | torch.dtype | None) -> torch.dtype:
    """Chooses float64 for sums and statistics if one of the tensors or dtypes is float64, else float32.

    Example:
        >>> tridal.ops.accumulator(torch.bfloat16, None), tridal.ops.accumulator(torch.float64)
        (torch.float32, torch.float64)
    """
    dtypes = [given.dtype if isinstance(given, torch.Tensor) else given for given in given]
    return torch.float64 if torch.float64 in dtypes else torch.float32
