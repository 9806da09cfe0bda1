"""Cross-entropy: the public function, its kernels for plain tensors, and the rules of the registered op."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch.overrides import handle_torch_function, has_torch_function

from tridal.library.losses import cross_entropy as maths
from tridal.library.losses.checks import check_numbers, check_targets, check_tensors
from tridal.library.losses.cross_entropy import CROSS_ENTROPY, MEAN, NONE, REDUCTIONS, classes_dim
from tridal.library.losses.inplace import check_inplace
from tridal.library.losses.launches import new_gradient, prepare_gradient, prepare_losses
from tridal.library.losses.reduction import prepare_reduction
from tridal.ops.row_reduce import accumulator
from tridal.pytorch.device_context import device_context
from tridal.pytorch.path.calls import PreparedCall, call, find_call
from tridal.pytorch.path.function import FUNCTIONS
from tridal.pytorch.path.launch_source import Prepared
from tridal.pytorch.path.nodes import OpNode, is_direct, records_gradient
from tridal.pytorch.path.registered import define
from tridal.pytorch.path.rules import Results, Rules, by_kernels
from tridal.pytorch.path.streams import call_on_stream
from tridal.pytorch.torch import private
from tridal.pytorch.torch.distributed import is_distributed

Tensor = torch.Tensor
_compiling = torch.compiler.is_dynamo_compiling


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: Literal["none", "mean", "sum"] = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    return_lse: bool = False,
    inplace_backward: bool = False,
    stream: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The cross-entropy of logits and targets, as torch.nn.functional.cross_entropy defines it.

    Args:
        input: logits of shape (C,), (N, C) or (N, C, d1, ...), with any strides. Dim 1 holds the classes.
        target: indices of classes of shape (), (N,) or (N, d1, ...), in int64 or uint8; or probabilities of the shape
            and device of the input, in a floating-point dtype.
        weight: a factor for each class, of shape (C,).
        ignore_index: rows with this target index have the loss and the gradient zero, and do not count in the mean.
        reduction: "mean" divides the sum by the sum of the weights of the targets, or by the number of rows for
            probabilities. It is NaN if there are no such targets. "none" returns the loss of each row.
        label_smoothing: the part of each target, from 0 to 1, that is replaced by the uniform distribution.
        z_loss: adds z_loss * logsumexp^2 to the loss of each target index, times its weight; or to each row, for
            probabilities.
        softcap: the logits are replaced by softcap * tanh(input / softcap).
        return_lse: also returns the log-sum-exp of each row. It is differentiable.
        inplace_backward: the backward writes the gradient into the memory of the input, which must be contiguous and no
            leaf. After the backward, the input holds its own gradient. Autograd raises an error if another operation
            needs the logits that it has saved. Compiled functions, transforms and second derivatives do not write.
        stream: see `tridal.softmax`. The backward uses it, too.

    Returns:
        The loss in the input's dtype; in torch's promoted dtype for probabilities; in float32 under autocast. Sums
        are float32 (float64 for float64). With `return_lse`, (loss, lse), lse in the dtype of the sums.

    Raises:
        TypeError, ValueError, RuntimeError, DTypeError, LayoutError, StreamError: an argument is wrong.
        IndexError: a target is out of range, on the CPU. On other devices the loss and the row's gradient are NaN.
        NoBackendError: no backend serves the tensor and the setting `fallback` is "error".
    """
    options: dict[str, Any] = {
        "ignore_index": ignore_index, "reduction": reduction, "label_smoothing": label_smoothing, "z_loss": z_loss,
        "softcap": softcap, "return_lse": return_lse, "inplace_backward": inplace_backward,
    }  # fmt: skip
    pending = None
    if not _compiling() and not inplace_backward:
        tensors = (input, target, weight)
        pending = find_call(cross_entropy, tensors, (*options.values(), stream), (), 2 if return_lse else 1)
        if type(pending) is PreparedCall:
            return pending(tensors)  # type: ignore[no-any-return]
    if not _compiling() and has_torch_function((input, target, weight)):
        return handle_torch_function(
            cross_entropy, (input, target, weight), input, target, weight, **options, stream=stream
        )
    if stream is not None and isinstance(input, Tensor):
        call_again = functools.partial(cross_entropy, input, target, weight, **options)
        return call_on_stream(stream, (input, target, weight), call_again)  # type: ignore[no-any-return]
    check_numbers(reduction, ignore_index, label_smoothing, z_loss, softcap)
    check_tensors(input, target=target, weight=weight)
    autocast = private.autocast_enabled(input.device.type)
    check_targets(input.shape, input.dtype, target, weight, ignore_index, autocast)
    target = target.long() if target.dtype is torch.uint8 else target  # an ignore_index of -100 would wrap to 156
    number = REDUCTIONS[reduction]
    cap = None if softcap is None else float(softcap)
    dtype = result_dtype(input.dtype, target, weight, autocast)
    numbers = (int(ignore_index), float(label_smoothing), float(z_loss), cap, dtype)
    if inplace_backward and not _compiling() and not private.transforms_active():
        check_inplace(input)
    if records_gradient(weight):
        loss, lse, _ = maths.reference(input, target, weight, number, *numbers)
    elif is_distributed(input, target, weight):
        from tridal.library.losses.dtensor import reduced

        loss, lse = reduced(input, target, weight, number, *numbers)
    elif inplace_backward and _writes_gradient(input, target, weight):
        rules = INPLACE_RULES
        loss, lse, _ = OpNode.apply(nullcontext, rules, rules.compute, input, target, weight, number, *numbers)
    else:
        results = call(RULES, (input, target, weight, number, *numbers), pending)
        loss, lse = results[0], results[1] if return_lse else None
    assert loss is not None
    if not return_lse:
        return loss
    assert lse is not None
    return loss, lse


def result_dtype(dtype: torch.dtype, target: Tensor, weight: Tensor | None, autocast: bool) -> torch.dtype:
    """Returns the dtype of the loss of logits of a dtype, as torch promotes it."""
    if autocast:
        dtype = torch.promote_types(dtype, torch.float32)
    if target.is_floating_point():
        dtype = torch.promote_types(dtype, target.dtype)
        dtype = dtype if weight is None else torch.promote_types(dtype, weight.dtype)
    return dtype


def _writes_gradient(*tensors: Tensor | None) -> bool:
    """Returns whether the call is one of plain tensors that records a gradient of the first tensor."""
    direct = not _compiling() and is_direct(*(tensor for tensor in tensors if tensor is not None))
    return direct and records_gradient(tensors[0])


def _prepare(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, label_smoothing: float,
    z_loss: float, softcap: float | None, dtype: torch.dtype, *, results: int | None = None,
) -> Prepared | None:  # fmt: skip
    """Returns run(input, target, weight) with the results of the op; None if no kernel computes them.

    If only the first `results` results are needed, the others may be None.
    """
    results = 3 if results is None else results
    context = device_context(input.device)
    if context.torch_computes:
        return None
    numbers = (ignore_index, label_smoothing, z_loss, softcap)
    row_dtype = dtype if reduction == NONE else None
    compute = prepare_losses(context, input, target, weight, *numbers, dtype=row_dtype, needs_lse=results > 1)
    if compute is None:
        return None
    dim, one_row = classes_dim(input), input.dim() == 1
    shape = (1,) if one_row else (*input.shape[:dim], *input.shape[dim + 1 :])
    rows = torch.empty(shape, dtype=accumulator(input, target, weight), device="meta")
    reduce = prepare_reduction(
        context, rows, target, weight, reduction, ignore_index, dtype, input.shape[dim], needs_denominator=results > 2
    )

    def run(input: Tensor, target: Tensor, weight: Tensor | None) -> Results:
        rows, lse = compute(input, target, weight)
        if one_row:
            rows, lse = rows.view(()), None if lse is None else lse.view(())
        loss, denominator = reduce(rows, target, weight)
        return loss, lse, denominator

    return Prepared(run)


def _save(arguments: tuple[Any, ...], results: Results) -> tuple[Results, tuple[Any, ...]]:
    input, target, weight, *numbers, _ = arguments
    _, lse, denominator = results
    has_denominator = numbers[0] == MEAN and not target.is_floating_point()
    return (input, target, weight, lse, denominator if has_denominator else None), tuple(numbers)


def _prepare_gradient(
    grad: Tensor | None, lse_grad: Tensor | None, input: Tensor, target: Tensor, weight: Tensor | None, lse: Tensor,
    denominator: Tensor | None, reduction: int, ignore_index: int, label_smoothing: float, z_loss: float,
    softcap: float | None, output_mask: list[bool], *, inplace: bool = False,
) -> Prepared | None:  # fmt: skip
    """Returns run(grad, lse_grad, input, target, weight, lse, denominator); None if no kernel computes the gradient.

    With `inplace`, it writes the gradient of the logits into them.
    """
    context = device_context(input.device)
    if not output_mask[0] or output_mask[1] or context.torch_computes:
        return None

    def row_grads(grad: Tensor | None, lse: Tensor, denominator: Tensor | None) -> Tensor:
        if grad is None:
            return torch.zeros_like(lse)
        if denominator is not None:
            return torch.div(grad, denominator.expand(lse.numel()))
        return maths.row_gradient(grad, lse, denominator, reduction)

    numbers = (ignore_index, label_smoothing, z_loss, softcap)
    row_grad = row_grads(grad, lse, denominator)
    compute = prepare_gradient(context, input, target, weight, lse, row_grad, lse_grad, numbers, inplace)
    if compute is None:
        return None

    def run(
        grad: Tensor | None, lse_grad: Tensor | None, input: Tensor, target: Tensor, weight: Tensor | None,
        lse: Tensor, denominator: Tensor | None,
    ) -> Results:  # fmt: skip
        found = compute(input, target, weight, lse, row_grads(grad, lse, denominator), lse_grad)
        if inplace:
            torch.autograd.graph.increment_version(input)
        return found, None

    return Prepared(run)


def _gradient_by_torch(*arguments: Any, inplace: bool = False) -> Results:
    """Computes the gradients with torch. May write that of the logits into them."""
    found, target_grad = maths.gradient(*arguments)
    if found is not None:
        input = arguments[2]
        like = new_gradient(input)
        if inplace:
            found = input.detach().copy_(found)
        elif found.stride() != like.stride():
            found = like.copy_(found)
    return found, None if target_grad is None else target_grad.contiguous()


def _fake(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, label_smoothing: float,
    z_loss: float, softcap: float | None, dtype: torch.dtype,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    dim, wide = classes_dim(input), accumulator(input, target, weight)
    shape = (*input.shape[:dim], *input.shape[dim + 1 :])
    loss = input.new_empty(shape if reduction == NONE else (), dtype=dtype)
    has_denominator = reduction == MEAN and not target.is_floating_point()
    denominator = input.new_empty((), dtype=wide) if has_denominator else None
    return loss, input.new_empty(shape, dtype=wide), denominator


def _fake_gradient(*arguments: Any) -> tuple[Tensor | None, ...]:
    input, target, output_mask = arguments[2], arguments[3], arguments[-1]
    return (
        new_gradient(input) if output_mask[0] else None,
        target.new_empty(target.shape) if output_mask[1] and target.is_floating_point() else None,
    )


RULES = Rules(
    op=CROSS_ENTROPY,
    compute=by_kernels(CROSS_ENTROPY.signature, _prepare, maths.reference),
    fake=_fake,
    save=_save,
    backward=by_kernels(CROSS_ENTROPY.gradient_signature, _prepare_gradient, _gradient_by_torch),
    fake_backward=_fake_gradient,
    by_torch=maths.reference,
    backward_by_torch=maths.gradient,
    prepare=_prepare,
    prepare_backward=_prepare_gradient,
)
_prepare_inplace = functools.partial(_prepare_gradient, inplace=True)
_inplace_by_torch = functools.partial(_gradient_by_torch, inplace=True)
_inplace_backward = by_kernels(CROSS_ENTROPY.gradient_signature, _prepare_inplace, _inplace_by_torch)
INPLACE_RULES = replace(RULES, backward=_inplace_backward, prepare_backward=None)
define(RULES)
FUNCTIONS["cross_entropy"] = cross_entropy
