"""Ops computed with torch's ops: for calls without a kernel, and for derivatives that autograd computes."""

from __future__ import annotations

import torch

from tridal.ops.row_op import RowOp
from tridal.ops.row_reduce import accumulator
from tridal.ops.scale_mask import modify_scores
from tridal.pytorch.op_call import OpCall


def compute(
    op: RowOp, input: torch.Tensor, dim: int, dtype: torch.dtype | None, parameters: tuple[float, ...] = ()
) -> torch.Tensor:
    """Computes an op in `dtype` or the input's dtype with torch's ops. Supports autograd and torch's subclasses."""
    if op.torch_function is not None:
        return op.torch_function(input, dim, dtype=dtype)
    wanted = dtype or input.dtype
    return op.compute(input.to(wanted).to(accumulator(wanted)), dim, parameters).to(wanted)


def compute_call(call: OpCall, input: torch.Tensor, dispatch: bool = False) -> torch.Tensor:
    """Computes a call. Modifies scores in at least float32. With `dispatch`, calls the registered op with them."""
    op, dim, dtype, parameters, modification = call
    if modification is None:
        return compute(op, input, dim, dtype, parameters)
    wanted = dtype or input.dtype
    scores = input.to(wanted).to(torch.promote_types(wanted, torch.float32))
    scores, empty = modify_scores(scores, dim, modification)
    if dispatch:
        result = OpCall(op, dim, scores.dtype, parameters).dispatch(scores)
    else:
        result = compute(op, scores, dim, None, parameters)
    return (result if empty is None else result.masked_fill(empty, 0.0)).to(wanted)


def gradient(call: OpCall, grad: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
    """Computes the op's gradient with torch's ops. The result is differentiable."""
    wide = accumulator(grad, saved)
    dx = call.op.compute_gradient(grad.to(wide), saved.to(wide), call.dim, call.parameters)
    return dx.to(call.dtype)
