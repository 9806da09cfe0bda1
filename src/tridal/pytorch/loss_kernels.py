"""Kernels of cross-entropy for plain tensors: the loss of each row, and the gradient of the logits.

Both functions return None if no kernel computes the tensors.
"""

from __future__ import annotations

from typing import Any

import torch

from tridal.ops.cross_entropy import (
    BACKWARD,
    BACKWARD_WITH_LSE,
    FORWARD,
    LSE,
    PROBABILITIES,
    PROBABILITIES_BACKWARD,
    SMOOTH,
    accumulator,
    bound,
    classes_dim,
)
from tridal.pytorch.device_context import DeviceContext
from tridal.pytorch.kernel_run import run_kernel
from tridal.pytorch.loss_checks import check_range
from tridal.runtime.row_kernel import RowKernel

Tensor = torch.Tensor


def rows_last(input: Tensor) -> tuple[Tensor, int] | None:
    """Returns the input or its view with the classes last, whichever is contiguous, and the dim of the classes."""
    if input.is_neg():
        return None
    if input.is_contiguous():
        return (input, 1) if input.dim() > 1 else (input.unsqueeze(0), 1)
    moved = input.movedim(1, -1)
    return (moved, moved.dim() - 1) if moved.is_contiguous() else None


def new_gradient(input: Tensor) -> Tensor:
    """Returns a new tensor with the strides of the logits if classes are the first or the last dim in memory.

    For other strides, it is contiguous.
    """
    found = rows_last(input)
    if found is None or found[0].dim() != input.dim():
        return input.new_empty(input.shape)
    return input.new_empty(found[0].shape).movedim(found[1], min(1, input.dim() - 1))


def _rows(input: Tensor) -> tuple[Tensor, int]:
    """Returns a tensor of at least two dims with the elements of the input, and its dim of the classes."""
    found = rows_last(input)
    if found is not None:
        return found
    return (input, 1) if input.dim() > 1 else (input.unsqueeze(0), 1)


def _bound(
    kernel: RowKernel, input: Tensor, weight: Tensor | None, ignore_index: int, label_smoothing: float, z_loss: float,
    softcap: float | None, weight_sum: bool = False,
) -> tuple[RowKernel, tuple[float, ...]]:  # fmt: skip
    """Returns the kernel without the absent tensors and parameters, and the values of the others."""
    values = {"label_smoothing": label_smoothing, "z_loss": z_loss}
    absent = [name for name in kernel.parameters if not values[name]]
    absent += [name for name, has in (("weight", weight is not None), ("weight_sum", weight_sum)) if not has]
    constants: dict[str, Any] = dict.fromkeys(n for n in absent if n in (*kernel.parameters, *kernel.column_reads))
    if kernel.row_index is not None:
        constants["IGNORE_INDEX"] = ignore_index
    elif "target" in kernel.reads:
        constants["CLASSES"] = input.shape[classes_dim(input)] if label_smoothing else 1
    parameters = tuple(values[name] for name in kernel.parameters if values[name])
    return bound(kernel, softcap, tuple(constants.items())), parameters


def row_losses(
    context: DeviceContext, input: Tensor, target: Tensor, weight: Tensor | None, *numbers: Any
) -> tuple[Tensor, Tensor] | None:
    """Computes loss and log-sum-exp of each row with kernels. Returns None if no kernel computes them."""
    ignore_index, label_smoothing = numbers[:2]
    x, dim = _rows(input)
    wide = accumulator(input, target, weight)
    weights = [] if weight is None else [weight]
    if target.is_floating_point():
        kernel, _ = _bound(LSE, input, None, *numbers)
        lse = run_kernel(context, kernel, dim, [x], (wide,))
        if lse is None:
            return None
        kernel, parameters = _bound(PROBABILITIES, input, weight, *numbers)
        placed = target if x is input else _like_rows(target, x, dim)
        rows = run_kernel(context, kernel, dim, [x, placed, *lse, *weights], (wide,), parameters)
        return None if rows is None else (rows[0], lse[0])
    if context.backend is not None and context.backend.interpreted:
        check_range(target, input.shape[classes_dim(input)], ignore_index)
    index = target.reshape(1).long() if input.dim() == 1 else target.long()
    kernel, parameters = _bound(FORWARD, input, weight, *numbers)
    found = run_kernel(context, kernel, dim, [x, index, *weights], (wide, wide), parameters)
    if found is None:
        return None
    rows_, lse_ = found
    if label_smoothing:
        kernel, parameters = _bound(SMOOTH, input, weight, *numbers)
        smooth = run_kernel(context, kernel, dim, [x, rows_, lse_, index, *weights], (wide,), parameters)
        if smooth is None:
            return None
        rows_ = smooth[0]
    return rows_, lse_


def _like_rows(tensor: Tensor, x: Tensor, dim: int) -> Tensor:
    """Returns a tensor of the shape of the logits, viewed as `_rows` views the logits."""
    return tensor.view(x.shape) if dim == 1 and x.dim() <= 2 and tensor.dim() == 1 else tensor.movedim(1, dim)


def logits_gradient(
    context: DeviceContext, input: Tensor, target: Tensor, weight: Tensor | None, lse: Tensor, row_grad: Tensor,
    lse_grad: Tensor | None, numbers: tuple[int, float, float, float | None], inplace: bool,
) -> Tensor | None:  # fmt: skip
    """Computes the gradient of the logits with a kernel, from that of each row's loss. Returns None if none does it.

    With `inplace`, the gradient is written into the logits, without a new version.
    """
    x, dim = _rows(input.detach())
    out = x if inplace else None
    weights = [] if weight is None else [weight]
    row_grad = row_grad.reshape(1) if input.dim() == 1 else row_grad
    rows = lse.reshape(1) if input.dim() == 1 else lse
    if target.is_floating_point():
        if lse_grad is not None:
            return None  # a kernel reads at most two tensors with a number per row
        kernel, parameters = _bound(PROBABILITIES_BACKWARD, input, weight, *numbers)
        placed = target if x is input else _like_rows(target, x, dim)
        found = run_kernel(context, kernel, dim, [x, placed, rows, row_grad, *weights], (input.dtype,), parameters, out)
    else:
        smoothed = weight is not None and numbers[1] > 0
        if weight is not None and smoothed:
            weights.append(weight.sum(dtype=lse.dtype).expand(weight.shape))
        index = target.reshape(1).long() if input.dim() == 1 else target.long()
        if lse_grad is None:
            kernel, parameters = _bound(BACKWARD, input, weight, *numbers, weight_sum=smoothed)
            row_inputs = [rows, row_grad]
        else:
            kernel, parameters = _bound(BACKWARD_WITH_LSE, input, weight, *numbers, weight_sum=smoothed)
            row_inputs = [row_grad, lse_grad.to(lse.dtype).reshape(rows.shape)]
        found = run_kernel(context, kernel, dim, [x, *row_inputs, index, *weights], (input.dtype,), parameters, out)
    if found is None:
        return None
    return found[0].view(input.shape) if input.dim() == 1 else found[0].movedim(dim, 1)
