"""Cross-entropy of a linear layer: the public function, and the rules of the registered op."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any, Literal

import torch
from torch.overrides import handle_torch_function, has_torch_function

from tridal.library.losses import cross_entropy as maths
from tridal.library.losses.cross_entropy import MEAN, NONE, REDUCTIONS
from tridal.library.losses.functions import result_dtype
from tridal.library.losses.linear_checks import check_linear
from tridal.library.losses.linear_chunks import chunked
from tridal.library.losses.linear_cross_entropy import LINEAR_CROSS_ENTROPY, gradient, reference
from tridal.ops.row_reduce import accumulator
from tridal.pytorch.path.calls import call
from tridal.pytorch.path.function import FUNCTIONS
from tridal.pytorch.path.nodes import records_gradient
from tridal.pytorch.path.registered import define
from tridal.pytorch.path.rules import Rules
from tridal.pytorch.path.streams import call_on_stream
from tridal.pytorch.torch import private
from tridal.pytorch.torch.distributed import is_distributed

Tensor = torch.Tensor
_compiling = torch.compiler.is_dynamo_compiling


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: Literal["none", "mean", "sum"] = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    chunk_size: int | None = None,
    accum_dtype: torch.dtype | None = None,
    stream: Any = None,
) -> Tensor:
    """cross_entropy(linear(input, linear_weight, linear_bias), target), without the memory of the logits.

    Args:
        input: shape (H,), (N, H) or (B, T, H).
        linear_weight: shape (C, H), or (C, d1, ..., H) for the logits (N, C, d1, ...).
        target: indices of shape (), (N,), (B, T) or (N, d1, ...), in int64 or uint8; or probabilities of the shape of
            the logits, (C,), (N, C), (B, T, C) or (N, C, d1, ...).
        linear_bias: shape (C,) or (C, d1, ...).
        weight: a factor for each class, of shape (C,).
        ignore_index: None is -100 for indices. It cannot be given for probabilities.
        reduction, label_smoothing, z_loss, softcap: see `tridal.cross_entropy`.
        chunk_size: the number of rows whose logits exist at the same time. By default, it follows from shapes and
            dtypes. With "mean" and "sum", the forward computes the gradients of the arguments that need one; with
            "none", the backward computes the logits again.
        accum_dtype: the dtype in which gradients of the weight and the bias are summed over chunks; float32 by default
            (float64 for float64). 16 bits save memory: the sum takes half of the bytes, and default chunks are smaller.
        stream: see `tridal.softmax`. Matmuls and the backward use it, too.

    Returns:
        The loss in the dtype of the logits; in torch's promoted dtype for probabilities; in float32 under autocast.
        With reduction "none", one for each target index, or for each row of probabilities.

    Raises:
        TypeError, ValueError, RuntimeError, DTypeError, LayoutError, IndexError, StreamError: an argument is wrong, see
            `tridal.cross_entropy`.
    """
    given = (input, linear_weight, target, linear_bias, weight)
    options: dict[str, Any] = {
        "linear_bias": linear_bias, "weight": weight, "reduction": reduction, "ignore_index": ignore_index,
        "label_smoothing": label_smoothing, "z_loss": z_loss, "softcap": softcap, "chunk_size": chunk_size,
        "accum_dtype": accum_dtype,
    }  # fmt: skip
    if not _compiling() and has_torch_function(given):
        return handle_torch_function(
            linear_cross_entropy, given, input, linear_weight, target, **options, stream=stream
        )
    if stream is not None and isinstance(input, Tensor):
        call_again = functools.partial(linear_cross_entropy, input, linear_weight, target, **options)
        return call_on_stream(stream, given, call_again)  # type: ignore[no-any-return]
    autocast = isinstance(input, Tensor) and private.autocast_enabled(input.device.type)
    ignored = -100 if ignore_index is None else ignore_index
    x, flat_target = check_linear(
        input, linear_weight, target, linear_bias, weight, reduction, ignore_index, label_smoothing, z_loss, softcap,
        chunk_size, accum_dtype, autocast,
    )  # fmt: skip
    if flat_target.dtype is torch.uint8:
        flat_target = flat_target.long()  # an ignore_index of -100 would wrap to 156
    matmul_dtype = input.dtype
    if autocast and input.dtype is not torch.float64:
        matmul_dtype = torch.get_autocast_dtype(input.device.type)
    dtype = result_dtype(matmul_dtype, target, weight, autocast)
    wide = torch.promote_types(matmul_dtype, torch.float32)
    needs = [records_gradient(tensor) for tensor in (input, linear_weight, linear_bias)]
    arguments = (
        x, linear_weight, flat_target, linear_bias, weight, REDUCTIONS[reduction], ignored, float(label_smoothing),
        float(z_loss), None if softcap is None else float(softcap), dtype, matmul_dtype, accum_dtype or wide,
        chunk_size or 0, needs if reduction != "none" else [False] * 3,
    )  # fmt: skip
    # A transform hides the placements of its tensors, and `call` computes it with torch's ops.
    if is_distributed(*given) and (_compiling() or not private.transforms_active()):
        from tridal.library.losses.dtensor import linear_cross_entropy as distributed

        loss: Tensor | None = distributed(*arguments[:-1])
    elif records_gradient(target, weight) or (not _compiling() and private.tracing_state() is not None):
        loss = reference(*arguments)[0]  # torch.jit.trace does not support lists of bools
    else:
        # A hook may keep the saved gradients, so the backward must not overwrite them.
        loss = call(RULES if not _compiling() and private.saves_through_hooks() else EAGER_RULES, arguments)[0]
    assert loss is not None
    return loss if reduction != "none" else loss.view((*input.shape[:-1], *linear_weight.shape[1:-1]))


def _compute(
    input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None, weight: Tensor | None,
    reduction: int, ignore_index: int, label_smoothing: float, z_loss: float, softcap: float | None,
    dtype: torch.dtype, matmul_dtype: torch.dtype, accum_dtype: torch.dtype, chunk_size: int, needs: list[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Computes the loss and the gradients of the mean or of the sum, in the dtypes in which matmuls write them.

    The backward multiplies them and rounds them to the dtypes of the tensors in one operation.
    Gradients of a mean in float16 are divided by the denominator in the backward, after the scale of the loss.
    """
    numbers = (ignore_index, label_smoothing, z_loss, softcap)
    wide = accumulator(input, target, weight)
    rows = input.new_empty((input.shape[0], *linear_weight.shape[1:-1]), dtype=wide)  # only shape and dtype are read
    denominator = None
    if reduction == MEAN:
        denominator = maths.reduce_rows(rows, target, weight, MEAN, ignore_index)[1]
        denominator = rows.new_full((), rows.numel()) if denominator is None else denominator
    divides_later = matmul_dtype is torch.float16
    with private.without_autocast(input.device.type):
        row_grad = None if denominator is None or divides_later else 1 / denominator
        losses, grads = chunked(
            input, linear_weight, target, linear_bias, weight, numbers, matmul_dtype, accum_dtype, chunk_size, needs,
            row_grad,
        )  # fmt: skip
        loss = maths.reduce_rows(losses, target, weight, reduction, ignore_index)[0].to(dtype)
    return loss, *grads, denominator if divides_later else None


def _save(arguments: tuple[Any, ...], results: tuple[Tensor | None, ...]) -> tuple[Any, tuple[Any, ...]]:
    tensors, numbers, needs = arguments[:5], (*arguments[5:10], *arguments[11:]), arguments[-1]  # all but `dtype`
    grads = [grad if need else None for grad, need in zip(results[1:4], needs, strict=True)]
    divides_later = arguments[5] == MEAN and arguments[11] is torch.float16
    return (*tensors, *grads, results[4] if divides_later else None), numbers


def _gradient(
    grad: Tensor | None, input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None,
    weight: Tensor | None, input_grad: Tensor | None, weight_grad: Tensor | None, bias_grad: Tensor | None,
    denominator: Tensor | None, reduction: int, ignore_index: int, label_smoothing: float, z_loss: float,
    softcap: float | None, matmul_dtype: torch.dtype, accum_dtype: torch.dtype, chunk_size: int, needs: list[bool],
    output_mask: list[bool], *, may_overwrite: bool = False,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Multiplies the gradients of the forward with that of the loss, or computes those of each row's loss."""
    assert grad is not None
    tensors = (input, linear_weight, linear_bias)
    if any(wanted and not has for wanted, has in zip(output_mask, needs, strict=True)):
        numbers = (ignore_index, label_smoothing, z_loss, softcap)
        like = input.new_empty((input.shape[0], *linear_weight.shape[1:-1]), dtype=accumulator(input, target, weight))
        total = maths.reduce_rows(like, target, weight, reduction, ignore_index)[1]
        with private.without_autocast(input.device.type):
            _, grads = chunked(
                input, linear_weight, target, linear_bias, weight, numbers, matmul_dtype, accum_dtype, chunk_size,
                output_mask, maths.row_gradient(grad, like, total, reduction),
            )  # fmt: skip
    else:
        saved = (input_grad, weight_grad, bias_grad)
        grads = [found if wanted else None for found, wanted in zip(saved, output_mask, strict=True)]
        factors = [grad] * 3
        if denominator is not None:
            grad = grad / denominator
            factors = [torch.where(kept, grad, 0.0) for kept in _kept(target, ignore_index, input.shape[0])]
        given = zip(grads, factors, tensors, strict=True)
        grads = [None if g is None or t is None else _scaled(g, f, t.dtype, may_overwrite) for g, f, t in given]
    pairs = zip(grads, tensors, strict=True)
    return tuple(None if g is None or t is None else g.to(t.dtype).view(t.shape) for g, t in pairs)


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


def _eager_gradient(*arguments: Any) -> tuple[Tensor | None, ...]:
    """Computes `_gradient`. It may overwrite the saved gradients if the graph of autograd is not kept."""
    return _gradient(*arguments, may_overwrite=not private.keeps_graph())


def _fake(*arguments: Any) -> tuple[Tensor | None, ...]:
    input, linear_weight, target, linear_bias, weight, reduction = arguments[:6]
    dtype, matmul_dtype, accum_dtype, _, needs = arguments[10:]
    shape = (input.shape[0], *linear_weight.shape[1:-1])
    loss = input.new_empty(shape if reduction == NONE else (), dtype=dtype)
    divides_later = matmul_dtype is torch.float16
    grads = [
        None if tensor is None or not need else tensor.new_empty(size, dtype=grad_dtype)
        for tensor, need, size, grad_dtype in (
            (input, needs[0], input.shape, matmul_dtype),
            (linear_weight, needs[1], linear_weight.flatten(0, -2).shape, accum_dtype),
            (linear_bias, needs[2], (math.prod(linear_weight.shape[:-1]),), accum_dtype),
        )
    ]
    denominator = input.new_empty((), dtype=accumulator(input, target, weight))
    return loss, *grads, denominator if divides_later and reduction == MEAN else None


def _fake_gradient(*arguments: Any) -> tuple[Tensor | None, ...]:
    tensors = (arguments[1], arguments[2], arguments[4])
    given = zip(tensors, arguments[-1], strict=True)
    return tuple(t.new_empty(t.shape) if wanted else None for t, wanted in given)


RULES = Rules(
    op=LINEAR_CROSS_ENTROPY,
    compute=_compute,
    fake=_fake,
    save=_save,
    backward=_gradient,
    fake_backward=_fake_gradient,
    by_torch=reference,
    backward_by_torch=gradient,
)
EAGER_RULES = replace(RULES, backward=_eager_gradient)
define(RULES)
FUNCTIONS["linear_cross_entropy"] = linear_cross_entropy
