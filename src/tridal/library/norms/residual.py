"""Functions of RMSNorm and LayerNorm: the sum with a residual, and when kernels compute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tridal.ops import RowReduce, sum_dtype

Tensor = torch.Tensor


def total_dtype(named: Mapping[str, Any]) -> torch.dtype:
    """The dtype of input + residual, from the arguments of a call by name."""
    input, residual = named["input"], named["residual"]
    return input.dtype if residual is None else torch.promote_types(input.dtype, residual.dtype)


def add_residual(input: Tensor, residual: Tensor | None, rows: RowReduce) -> tuple[Tensor, torch.dtype]:
    """input + residual, rounded to the promoted dtype, and this dtype. Both are in the dtype of sums."""
    dtype = rows.dtypes["input"]
    if residual is None:
        return input, dtype
    dtype = torch.promote_types(dtype, rows.dtypes["residual"])
    return rows.rounded(input + residual, dtype, "residual_sum"), dtype


def unsupported(named: Mapping[str, Any], dtypes: Sequence[torch.dtype]) -> str | None:
    """Why no kernel computes a norm or its gradient: float64 is mixed with narrower dtypes."""
    x = total_dtype(named) if "input" in named else named["x"].dtype
    narrow = x is not torch.float64 or dtypes[0] is not torch.float64
    mixed = narrow and sum_dtype(named) is torch.float64
    return "kernels of norms compute float64 tensors with float64 tensors only" if mixed else None
