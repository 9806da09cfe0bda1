"""Cross-entropy of a linear layer: its declaration, its maths in torch's ops, and its steps.

The op's tensors are input (N, H), linear_weight (C, d1, ..., H), and targets of the logits (N, C, d1, ...). The forward
computes the gradients, too, except those of a loss for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from tridal.library.losses import maths
from tridal.library.losses import steps as of_logits
from tridal.library.losses.cross_entropy import CROSS_ENTROPY, NUMBERS
from tridal.library.losses.linear_chunks import (
    CHUNK_NUMBERS,
    LAYER,
    as_tensors,
    in_chunks,
    layer_gradients,
    logits_of,
)
from tridal.library.losses.maths import MEAN, NONE
from tridal.ops import (
    DTYPE,
    Argument,
    Named,
    NoKernel,
    Op,
    Result,
    RowReduce,
    accumulator,
    compute,
    compute_gradient,
    whole,
)
from tridal.pytorch import Steps, record_torch_call, without_autocast

Tensor = torch.Tensor


def reference(
    input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None, weight: Tensor | None,
    reduce: RowReduce, reduction: int, ignore_index: int, label_smoothing: float, z_loss: float, softcap: float | None,
    matmul_dtype: torch.dtype, accum_dtype: torch.dtype, chunk_size: int, needs: list[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the loss. It computes all logits at once, and no gradients: autograd differentiates it."""
    logits = logits_of(input, linear_weight, linear_bias, matmul_dtype)
    numbers = (reduction, ignore_index, label_smoothing, z_loss, softcap, accumulator(logits, target, weight))
    return compute(CROSS_ENTROPY, logits, target, weight, *numbers)[0], None, None, None, None


def gradient(
    grad: Tensor, input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None,
    weight: Tensor | None, input_grad: Tensor | None, weight_grad: Tensor | None, bias_grad: Tensor | None,
    denominator: Tensor | None, reduce: RowReduce, reduction: int, ignore_index: int, label_smoothing: float,
    z_loss: float, softcap: float | None, matmul_dtype: torch.dtype, accum_dtype: torch.dtype, chunk_size: int,
    needs: list[bool], output_mask: list[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the gradients of input, weight and bias. It computes all logits again, and reads no saved gradient."""
    logits = logits_of(input, linear_weight, linear_bias, matmul_dtype)
    numbers = (reduction, ignore_index, label_smoothing, z_loss, softcap)
    lse = logits.sum(1, dtype=accumulator(logits, target, weight))  # its shape and dtype: the gradient computes it
    _, total = maths.reduce_rows(lse, target, weight, reduction, ignore_index)
    given = (grad, None, logits, target, weight, lse, total, *numbers, [True, False])
    dlogits = compute_gradient(CROSS_ENTROPY, *given)[0]
    assert dlogits is not None
    return layer_gradients(dlogits, input, linear_weight, matmul_dtype, output_mask)


def _losses(
    call: Steps, logits: Tensor, target: Tensor, weight: Tensor | None, row_grad: Tensor | None,
    numbers: of_logits.Numbers,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Returns the loss of each row, and with `row_grad` the gradient of the logits, which kernels write into them."""
    if row_grad is not None:
        with suppress(NoKernel):
            return of_logits.losses_with_gradient(call, logits, target, weight, row_grad, numbers)
    lse: Tensor | None
    try:
        keeps_lse = row_grad is not None or call.batch_invariant  # as cross_entropy
        losses, lse = of_logits.losses(call, logits, target, weight, numbers, needs_lse=keeps_lse)
    except NoKernel as reason:
        _record(CROSS_ENTROPY.name, reason, logits, target)
        wide = accumulator(logits, target, weight)
        results: Any = compute(CROSS_ENTROPY, logits, target, weight, NONE, *numbers, wide)
        losses, lse, _ = results
    if row_grad is None:
        return losses, None
    assert lse is not None
    lse = lse.view(row_grad.shape)
    try:
        given = (logits, target, weight, lse, row_grad, None, numbers)
        return losses, of_logits.logits_gradient(call, *given, overwrites=True)
    except NoKernel as reason:
        _record(CROSS_ENTROPY.gradient_signature.name, reason, row_grad, logits, target)
    saved = (logits, target, weight, lse, None)
    return losses, compute_gradient(CROSS_ENTROPY, row_grad, None, *saved, NONE, *numbers, [True, False])[0]


def _record(op: str, reason: NoKernel, *tensors: Tensor) -> None:
    record_torch_call(op, None, *tensors, otherwise=str(reason) or None)


def _chunked(
    call: Steps, named: Named, needs: Sequence[bool], row_grad: Tensor | None
) -> tuple[Tensor, list[Tensor | None]]:
    """Returns the loss of each row, and the gradients of input, weight and bias that `needs` selects.

    `row_grad` is the gradient of each row's loss; None is one. It may be a number or a tensor that can be broadcast.
    """
    target, weight = named["target"].detach(), named["weight"]
    numbers = tuple(named[name] for name in ("ignore_index", "label_smoothing", "z_loss", "softcap"))
    losses = _rows(named)
    row_grad = losses.new_ones(()) if row_grad is None else row_grad.to(losses.dtype)
    row_grad = row_grad.expand(losses.shape)

    def of_chunk(logits: Tensor, rows: slice) -> Tensor | None:
        given = row_grad[rows] if any(needs) else None
        found, dlogits = _losses(call, logits, target[rows], weight, given, numbers)
        losses[rows] = found.view(losses[rows].shape)
        return dlogits

    return losses, in_chunks(call, named, needs, of_chunk)


def steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    """Returns the loss and the gradients of the mean or of the sum, in the dtypes in which matmuls write them.

    The backward multiplies them and rounds them to the dtypes of the tensors in one operation.
    Gradients of a mean in float16 are divided by the denominator in the backward, after the scale of the loss.
    """
    rows, target, weight, reduction = _rows(named), named["target"], named["weight"], named["reduction"]
    denominator = None
    if reduction == MEAN:
        denominator = maths.reduce_rows(rows, target, weight, MEAN, named["ignore_index"])[1]
        denominator = rows.new_full((), rows.numel()) if denominator is None else denominator
    divides_later = _divides_later(named)
    with without_autocast(rows.device.type):
        row_grad = None if denominator is None or divides_later else 1 / denominator
        losses, grads = _chunked(call, named, named["needs"], row_grad)
        loss = maths.reduce_rows(losses, target, weight, reduction, named["ignore_index"])[0].to(named["dtype"])
    return loss, *grads, denominator if divides_later else None


def _rows(named: Named) -> Tensor:
    """Returns a tensor with the shape and the dtype of the loss of each row. Its values are undefined."""
    input, linear_weight = named["input"], named["linear_weight"]
    dtype = accumulator(input, named["target"], named["weight"])
    return input.new_empty((input.shape[0], *linear_weight.shape[1:-1]), dtype=dtype)  # type: ignore[no-any-return]


def gradient_steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    """Multiplies the gradients of the forward with that of the loss, or computes those of each row's loss.

    It may overwrite the saved gradients.
    """
    grad, target, mask = named["grad"], named["target"], named["output_mask"]
    tensors = [named[name] for name in LAYER]
    if any(wanted and not has for wanted, has in zip(mask, named["needs"], strict=True)):
        rows, reduction = _rows(named), named["reduction"]
        total = maths.reduce_rows(rows, target, named["weight"], reduction, named["ignore_index"])[1]
        with without_autocast(rows.device.type):
            row_grad = maths.row_gradient(grad.to(rows.dtype), rows.numel(), total, reduction)
            _, grads = _chunked(call, named, mask, row_grad)
    else:
        saved = (named["input_grad"], named["weight_grad"], named["bias_grad"])
        grads = [found if wanted else None for found, wanted in zip(saved, mask, strict=True)]
        factors = [grad] * 3
        if (denominator := named["denominator"]) is not None:
            grad = grad / denominator
            kept = _kept(target, named["ignore_index"], tensors[0].shape[0])
            factors = [torch.where(some, grad, 0.0) for some in kept]
        given = zip(grads, factors, tensors, strict=True)
        grads = [None if g is None else _scaled(g, factor, t.dtype, call.overwrites) for g, factor, t in given]
    return as_tensors(grads, named)


def _scaled(grad: Tensor, factor: Tensor, dtype: torch.dtype, may_overwrite: bool) -> Tensor:
    """Returns grad * factor, rounded once to `dtype`."""
    if torch.promote_types(grad.dtype, dtype) is not grad.dtype:  # the product would be rounded to the narrower dtype
        return grad.to(dtype).mul_(factor)
    overwrites = may_overwrite and grad.dtype is dtype
    return torch.mul(grad, factor, out=grad if overwrites else torch.empty_like(grad, dtype=dtype))


def _kept(target: Tensor, ignore_index: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns whether the gradients of input, weight and bias have terms of targets that are not ignored.

    The quotient of zero and a denominator of zero is NaN only for these, as in torch.
    """
    if target.is_floating_point():
        kept = target.new_ones((rows, 1), dtype=torch.bool)
    else:
        kept = (target != ignore_index).unsqueeze(1).flatten(1).any(1, keepdim=True)
    some = kept.any()
    return kept, some, some


def _new_loss(named: Named) -> Tensor:
    rows = _rows(named)
    return rows.new_empty(rows.shape if named["reduction"] == NONE else (), dtype=named["dtype"])


def _divides_later(named: Named) -> bool:
    return named["reduction"] == MEAN and named["matmul_dtype"] is torch.float16


def _saved(index: int, argument: str, shape: Callable[[Tensor], torch.Size], dtype: str) -> Result:
    """Returns the result with the gradient of an argument, if item `index` of `needs` is true."""
    return Result(
        f"{argument.removeprefix('linear_')}_grad", "whole", returned=False,
        needs=lambda named: named[argument] is not None and named["needs"][index],
        new=lambda named: named[argument].new_empty(shape(named[argument]), dtype=named[dtype]),
    )  # fmt: skip


_NUMBERS = (*CHUNK_NUMBERS, Argument("needs", "bool[]"))
LINEAR_CROSS_ENTROPY = Op(
    name="linear_cross_entropy",
    arguments=(
        whole("input", differentiable=True), whole("linear_weight", differentiable=True), whole("target"),
        whole("linear_bias", optional=True, differentiable=True), whole("weight", optional=True), *NUMBERS, DTYPE,
        *_NUMBERS,
    ),
    results=(
        Result("loss", "whole", new=_new_loss, gradient="grad"),
        _saved(0, "input", lambda tensor: tensor.shape, "matmul_dtype"),
        _saved(1, "linear_weight", lambda tensor: tensor.flatten(0, -2).shape, "accum_dtype"),
        _saved(2, "linear_bias", lambda tensor: tensor.flatten().shape, "accum_dtype"),
        Result("denominator", "number", needs=_divides_later, returned=False),
    ),
    kernels=(),
    reference=reference,
    gradient=gradient,
    steps=steps,
    gradient_steps=gradient_steps,
    prepares=False,
    dim=-1,
    saves=(
        "input", "linear_weight", "target", "linear_bias", "weight", "input_grad", "weight_grad", "bias_grad",
        "denominator",
    ),
    gradient_numbers=(*NUMBERS, *_NUMBERS),
    cases="tridal.library.losses.cases:LINEAR_CROSS_ENTROPY",
)  # fmt: skip
"""It has no kernels of its own: it runs torch's matmul and the kernels of cross-entropy."""
