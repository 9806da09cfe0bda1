"""Kernels of cross-entropy for plain tensors: the loss of each row, the gradient of the logits, or both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tridal.library.losses.checks import check_range
from tridal.library.losses.cross_entropy import (
    BACKWARD,
    BACKWARD_WITH_LSE,
    FORWARD,
    LSE,
    PROBABILITIES,
    PROBABILITIES_BACKWARD,
    SMOOTH,
    WITH_GRADIENT,
    bound,
    classes_dim,
)
from tridal.ops.row_reduce import accumulator
from tridal.pytorch.device_context import DeviceContext
from tridal.pytorch.path.launch_source import Launch
from tridal.pytorch.path.launches import prepare_kernel
from tridal.runtime.row_kernel import RowKernel

Tensor = torch.Tensor


def rows_last(input: Tensor) -> tuple[Tensor, int] | None:
    """Returns the input or its view with the classes last, whichever is contiguous, and the dim of the classes."""
    if input.is_neg():
        return None
    if input.is_contiguous():
        return (input, 1) if input.dim() > 1 else (input.unsqueeze(0), 1)
    if input.dim() == 1:
        return None
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


Losses = Callable[[Tensor, Tensor, "Tensor | None"], tuple[Tensor, "Tensor | None"]]
Gradient = Callable[..., Tensor]


def prepare_losses(
    context: DeviceContext, input: Tensor, target: Tensor, weight: Tensor | None, *numbers: Any,
    dtype: torch.dtype | None = None, needs_lse: bool = True,
) -> Losses | None:  # fmt: skip
    """Returns f(input, target, weight), which computes loss and log-sum-exp of each row with kernels.

    The loss has the dtype `dtype`, by default the accumulator's. The log-sum-exp may be None if it is not needed.
    Returns None if no kernel computes the tensors.
    """
    ignore_index, label_smoothing = numbers[:2]
    if not _has_32_bits(ignore_index):
        return None
    x, dim = _rows(input)
    wide = accumulator(input, target, weight)
    dtype = wide if dtype is None or wide is torch.float64 else dtype
    weights = [] if weight is None else [weight]
    row = torch.empty((*x.shape[:dim], *x.shape[dim + 1 :]), dtype=wide, device="meta")
    viewed = x is not input
    if target.is_floating_point():
        kernel, _ = _bound(LSE, input, None, *numbers)
        log_sums = prepare_kernel(context, Launch(kernel, dim, (wide,)), [x])
        kernel, parameters = _bound(PROBABILITIES, input, weight, *numbers)
        placed = _like_rows(target, x, dim) if viewed else target
        rows = prepare_kernel(context, Launch(kernel, dim, (dtype,), parameters), [x, placed, row, *weights])
        if log_sums is None or rows is None:
            return None

        def of_probabilities(input: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
            x = _rows(input)[0] if viewed else input
            placed = _like_rows(target, x, dim) if viewed else target
            (lse,) = log_sums.run(x)
            return rows.run(x, placed, lse, *(() if weight is None else (weight,)))[0], lse

        return of_probabilities
    checked = context.backend is not None and context.backend.interpreted
    index, one_row = _index(target, input), input.dim() == 1
    kernel, parameters = _bound(FORWARD, input, weight, *numbers)
    dtypes = (wide if label_smoothing else dtype, wide)
    only_loss = not needs_lse and not label_smoothing
    kernel = kernel.writing("loss") if only_loss else kernel
    outputs = len(kernel.row_writes)
    forward = prepare_kernel(context, Launch(kernel, dim, dtypes[:outputs], parameters), [x, index, *weights])
    kernel, parameters = _bound(SMOOTH, input, weight, *numbers)
    smooth = None
    if label_smoothing:
        smooth = prepare_kernel(context, Launch(kernel, dim, (dtype,), parameters), [x, row, row, index, *weights])
    if forward is None or (label_smoothing and smooth is None):
        return None

    def of_indices(input: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if checked:
            check_range(target, input.shape[classes_dim(input)], ignore_index)
        x = _rows(input)[0] if viewed else input
        index = _index(target, input) if one_row else target
        found = forward.run(x, index) if weight is None else forward.run(x, index, weight)
        if only_loss:
            return found[0], None
        loss, lse = found
        if smooth is not None:
            (loss,) = smooth.run(x, loss, lse, index, *(() if weight is None else (weight,)))
        return loss, lse

    return of_indices


def _has_32_bits(ignore_index: int) -> bool:
    """Returns whether kernels can compare target indices with this one. All wider target indices are alike to them."""
    return -(2**31) < ignore_index < 2**31


def _index(target: Tensor, input: Tensor) -> Tensor:
    """Returns the target indices, in one dim for logits of one row."""
    return target.reshape(1) if input.dim() == 1 else target


def _like_rows(tensor: Tensor, x: Tensor, dim: int) -> Tensor:
    """Returns a tensor of the shape of the logits, viewed as `_rows` views the logits."""
    return tensor.view(x.shape) if dim == 1 and x.dim() <= 2 and tensor.dim() == 1 else tensor.movedim(1, dim)


def prepare_gradient(
    context: DeviceContext, input: Tensor, target: Tensor, weight: Tensor | None, lse: Tensor, row_grad: Tensor,
    lse_grad: Tensor | None, numbers: tuple[int, float, float, float | None], inplace: bool,
) -> Gradient | None:  # fmt: skip
    """Returns f(input, target, weight, lse, row_grad, lse_grad), the gradient of the logits by a kernel.

    `row_grad` is the gradient of each row's loss. It has any shape. With `inplace`, the gradient is written into the
    logits, without a new version. Returns None if no kernel computes the tensors.
    """
    if not _has_32_bits(numbers[0]):
        return None
    x, dim = _rows(input)
    viewed, one_row, probabilities = x is not input, input.dim() == 1, target.is_floating_point()
    weight_sum = weight is not None and numbers[1] > 0 and not probabilities
    if probabilities and lse_grad is not None:
        return None  # a kernel reads at most two tensors with a number per row
    kernel = PROBABILITIES_BACKWARD if probabilities else BACKWARD if lse_grad is None else BACKWARD_WITH_LSE
    kernel, parameters = _bound(kernel, input, weight, *numbers, weight_sum=weight_sum)

    def inputs(
        x: Tensor, target: Tensor, weight: Tensor | None, lse: Tensor, row_grad: Tensor, lse_grad: Tensor | None
    ) -> list[Tensor]:
        if probabilities:
            given = [x, _like_rows(target, x, dim) if viewed else target, lse, row_grad]
        else:
            index = target.reshape(1) if one_row else target
            given = [x, lse, row_grad, index] if lse_grad is None else [x, row_grad, lse_grad, index]
        if weight is not None:
            given.append(weight)
            if weight_sum:
                given.append(weight.sum(dtype=lse.dtype).expand(weight.shape))
        return given

    given = inputs(x, target, weight, lse, row_grad, lse_grad)
    launch = prepare_kernel(context, Launch(kernel, dim, (input.dtype,), parameters), given, x if inplace else None)
    if launch is None:
        return None

    def run(
        input: Tensor, target: Tensor, weight: Tensor | None, lse: Tensor, row_grad: Tensor, lse_grad: Tensor | None
    ) -> Tensor:
        input = input.detach() if inplace else input
        x = _rows(input)[0] if viewed else input
        given = inputs(x, target, weight, lse, row_grad, lse_grad)
        found: Tensor = (launch.run(x, *given) if inplace else launch.run(*given))[0]
        if not viewed:
            return found
        return found.view(input.shape) if one_row else found.movedim(dim, 1)

    return run


def prepare_losses_with_gradient(
    context: DeviceContext, input: Tensor, target: Tensor, weight: Tensor | None, row_grad: Tensor,
    numbers: tuple[int, float, float, float | None],
) -> Callable[..., tuple[Tensor, Tensor]] | None:  # fmt: skip
    """Returns f(input, target, weight, row_grad), the loss of each row and the gradient of the logits by one kernel.

    Targets are indices. `row_grad` is the gradient of each row's loss, in the accumulator's dtype. The gradient is
    written into the logits (N, C, ...), without a new version. Returns None if no kernel computes the tensors, with
    label smoothing, and with `batch_invariant`, where the losses must equal those of a call without gradients.
    """
    ignore_index, label_smoothing = numbers[:2]
    if label_smoothing or context.settings.batch_invariant or not _has_32_bits(ignore_index):
        return None
    x, dim = _rows(input)
    kernel, parameters = _bound(WITH_GRADIENT, input, weight, *numbers)
    checked = context.backend is not None and context.backend.interpreted
    wide, classes, viewed = accumulator(input, target, weight), input.shape[1], x is not input
    weights = [] if weight is None else [weight]
    row = torch.empty(target.shape, dtype=wide, device="meta")
    inputs = [x, row_grad, row, target, *weights]
    launch = prepare_kernel(context, Launch(kernel, dim, (input.dtype, wide), parameters), inputs, x)
    if launch is None:
        return None

    def run(input: Tensor, target: Tensor, weight: Tensor | None, row_grad: Tensor) -> tuple[Tensor, Tensor]:
        if checked:
            check_range(target, classes, ignore_index)
        x = _rows(input)[0] if viewed else input
        logit = input.gather(1, target.clamp(0, classes - 1).unsqueeze(1)).squeeze(1).to(wide)
        logit.masked_fill_((target < 0) | (target >= classes), torch.nan)  # the kernel ignores it for ignored targets
        given = (x, row_grad, logit, target) if weight is None else (x, row_grad, logit, target, weight)
        dx, losses = launch.run(x, *given)
        return losses, dx.movedim(dim, 1) if viewed else dx

    return run
