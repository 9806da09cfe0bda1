"""Ops computed by torch: where no kernel computes, and where autograd has to see torch's own ops."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tridal.ops.row_op import RowOp
from tridal.ops.scale_mask import ScoreModification, modify_scores


def accumulator(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype of statistics: float64 if one dtype is float64, else float32."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def compute(
    op: RowOp,
    input: torch.Tensor,
    dim: int,
    dtype: torch.dtype | None,
    parameters: tuple[float, ...] = (),
    modification: ScoreModification | None = None,
) -> torch.Tensor:
    """The op by torch's ops, in `dtype` or the input's dtype. Differentiable; accepts all subclasses of torch."""
    if modification is not None:
        return compute_modified(lambda x: compute(op, x, dim, None, parameters), input, dim, dtype, modification)
    wanted = dtype or input.dtype
    if op.torch_function is not None:
        return op.torch_function(input, dim, dtype=dtype)
    return op.compute(input.to(wanted).to(accumulator(wanted)), dim, parameters).to(wanted)


def compute_modified(
    function: Callable[[torch.Tensor], torch.Tensor],
    input: torch.Tensor,
    dim: int,
    dtype: torch.dtype | None,
    modification: ScoreModification,
) -> torch.Tensor:
    """function(scores) in `dtype` or the input's dtype. torch's ops modify the scores first, in float32 or wider."""
    wanted = dtype or input.dtype
    x = input.to(wanted).to(torch.promote_types(wanted, torch.float32))
    x, empty = modify_scores(x, dim, modification)
    y = function(x)
    return (y if empty is None else y.masked_fill(empty, 0.0)).to(wanted)


def gradient(
    op: RowOp,
    grad: torch.Tensor,
    saved: torch.Tensor,
    dim: int,
    dtype: torch.dtype,
    parameters: tuple[float | None, ...],
) -> torch.Tensor:
    """The op's gradient by torch's ops, in `dtype`. Differentiable."""
    wide = accumulator(grad.dtype, saved.dtype)
    return op.compute_gradient(grad.to(wide), saved.to(wide), dim, parameters).to(dtype)
