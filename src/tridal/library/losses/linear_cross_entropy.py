"""Cross-entropy of a linear layer: its declaration, its math in torch's ops, and its steps.

The op's tensors are input (N, H), linear_weight (C, d1, ..., H), and targets of the logits (N, C, d1, ...). The forward
computes the gradients, too, except those of a loss for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from tridal.library.losses import linear_chunks, loss_math
from tridal.library.losses.cross_entropy import CROSS_ENTROPY, NUMBERS, Logits
from tridal.library.losses.linear_chunks import CHUNK_NUMBERS, LAYER, LAYER_TENSORS, as_tensors, logits_of
from tridal.library.losses.loss_math import MEAN, NONE, Options
from tridal.ops import DTYPE, Argument, Named, NoKernel, Op, Result, accumulator, compute, compute_gradient, whole
from tridal.pytorch import Steps, record_torch_call

Tensor = torch.Tensor


def reference(
    input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None, weight: Tensor | None,
    reduce: Any, **numbers: Any,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the loss. It computes all logits at once, and no gradients: autograd differentiates it."""
    logits = logits_of(input, linear_weight, linear_bias, numbers["matmul_dtype"])
    dtype = accumulator(logits, target, weight)
    return compute(CROSS_ENTROPY, logits, target, weight, *Options.of(numbers), dtype)[0], None, None, None, None


def gradient(
    grad: Tensor, input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None,
    weight: Tensor | None, *_: Any, output_mask: list[bool], **numbers: Any,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the gradients of input, weight and bias. It computes all logits again, and reads no saved gradient."""
    options, logits = Options.of(numbers), logits_of(input, linear_weight, linear_bias, numbers["matmul_dtype"])
    lse = logits.sum(1, dtype=accumulator(logits, target, weight))  # its shape and dtype: the gradient computes it
    total = loss_math.mean_denominator(target, weight, options, lse.dtype)
    dlogits = compute_gradient(
        CROSS_ENTROPY, grad, None, logits, target, weight, lse, total, *options, [True, False]
    )[0]  # fmt: skip
    assert dlogits is not None
    return linear_chunks.layer_gradients(dlogits, input, linear_weight, numbers["matmul_dtype"], output_mask)


def _losses(
    call: Steps, logits: Tensor, target: Tensor, weight: Tensor | None, row_grad: Tensor | None, options: Options
) -> tuple[Tensor, Tensor | None]:
    """Returns the loss of each row, and with `row_grad` the gradient of the logits, which kernels write into them."""
    found: Any
    given = (logits, target, weight)
    try:
        kernels = Logits(call, *given, options)
        if row_grad is not None:
            with suppress(NoKernel):
                return kernels.losses_with_gradient(row_grad)
        found = kernels.losses(None, needs_lse=row_grad is not None or call.batch_invariant)  # as cross_entropy
    except NoKernel as reason:
        record_torch_call(CROSS_ENTROPY.name, None, logits, target, otherwise=str(reason) or None)
        found = compute(CROSS_ENTROPY, *given, *options, accumulator(*given))
    losses, lse = found[:2]
    if row_grad is None:
        return losses, None
    try:
        return losses, Logits(call, *given, options).gradient(lse, row_grad, None, None, overwrites=True)
    except NoKernel as reason:
        name = CROSS_ENTROPY.gradient_signature.name
        record_torch_call(name, None, row_grad, logits, target, otherwise=str(reason) or None)
    return losses, compute_gradient(CROSS_ENTROPY, row_grad, None, *given, lse, None, *options, [True, False])[0]


def _chunked(
    call: Steps, named: Named, needs: Sequence[bool], losses: Tensor, row_grad: Tensor | None
) -> list[Tensor | None]:
    """Writes the loss of each row. Returns the gradients of input, weight and bias that `needs` selects.

    `row_grad` is the gradient of each row's loss; None is one. It may be a number or a tensor that can be broadcast.
    """
    target, weight, options = named["target"].detach(), named["weight"], Options.of(named)._replace(reduction=NONE)
    row_grad = losses.new_ones(()) if row_grad is None else row_grad.to(losses.dtype)
    row_grad = row_grad.expand(losses.shape)

    def of_chunk(logits: Tensor, rows: slice) -> Tensor | None:
        given = row_grad[rows] if any(needs) else None
        losses[rows], dlogits = _losses(call, logits, target[rows], weight, given, options)
        return dlogits

    return linear_chunks.in_chunks(call, named, needs, of_chunk)


def steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    """Returns the loss and the gradients of the mean or of the sum, in the dtypes in which matmuls write them.

    The backward multiplies them and rounds them to the dtypes of the tensors in one operation.
    Gradients of a mean in float16 are divided by the denominator in the backward, after the scale of the loss.
    """
    rows, target, weight, options = _rows(named), named["target"], named["weight"], Options.of(named)
    denominator = loss_math.mean_denominator(target, weight, options, rows.dtype)
    if denominator is None and options.reduction == MEAN:
        denominator = rows.new_full((), rows.numel())
    later = _divides_later(named)
    grads = _chunked(call, named, named["needs"], rows, None if denominator is None or later else 1 / denominator)
    loss = loss_math.reduce_rows(rows, target, weight, options, named["dtype"])[0]
    return loss, *grads, denominator if later else None


def _rows(named: Named) -> Tensor:
    """Returns a tensor with the shape and the dtype of the loss of each row. Its values are undefined."""
    input, linear_weight = named["input"], named["linear_weight"]
    dtype = accumulator(input, named["target"], named["weight"])
    return input.new_empty((input.shape[0], *linear_weight.shape[1:-1]), dtype=dtype)  # type: ignore[no-any-return]


def gradient_steps(call: Steps, named: Named) -> tuple[Tensor | None, ...]:
    """Multiplies the gradients of the forward with that of the loss, or computes those of each row's loss.

    It may overwrite the saved gradients.
    """
    grad, target, mask, options = named["grad"], named["target"], named["output_mask"], Options.of(named)
    if any(wanted and not has for wanted, has in zip(mask, named["needs"], strict=True)):
        rows = _rows(named)
        total = loss_math.mean_denominator(target, named["weight"], options, rows.dtype)
        row_grad = loss_math.row_gradient(grad.to(rows.dtype), rows.numel(), total, options.reduction)
        return as_tensors(_chunked(call, named, mask, rows, row_grad), named)
    factors, denominator = [grad] * 3, named["denominator"]
    if denominator is not None:
        grad = grad / denominator
        kept = _kept(target, options.ignore_index, named["input"].shape[0])
        factors = [torch.where(some, grad, 0.0) for some in kept]
    saved = [named[name] for name in ("input_grad", "weight_grad", "bias_grad")]
    given = zip(saved, factors, LAYER, mask, strict=True)
    grads = [
        _scaled(found, factor, named[name].dtype, call.overwrites) if wanted and found is not None else None
        for found, factor, name, wanted in given
    ]
    return as_tensors(grads, named)


def _scaled(grad: Tensor, factor: Tensor, dtype: torch.dtype, may_overwrite: bool) -> Tensor:
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
    arguments=(*LAYER_TENSORS, whole("weight", optional=True), *NUMBERS, DTYPE, *_NUMBERS),
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
