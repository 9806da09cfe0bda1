"""The public functions cross_entropy and linear_cross_entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import torch

from tridal.errors import REMOVED, ShapeError, unexpected
from tridal.library.losses.checks import check_layer, check_target, check_weight, checked_options
from tridal.library.losses.cross_entropy import CROSS_ENTROPY
from tridal.library.losses.linear_chunks import LAYER
from tridal.library.losses.linear_cross_entropy import LINEAR_CROSS_ENTROPY
from tridal.library.losses.loss_math import classes_dim
from tridal.ops import Arguments, check_bool, check_floating, wrong
from tridal.pytorch import (
    autocast_enabled,
    check_tensors,
    is_distributed,
    op_function,
    records_gradient,
    reference,
    saves_through_hooks,
    tracing_state,
    transforms_active,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

Tensor = torch.Tensor
_compiling = torch.compiler.is_dynamo_compiling
REMOVED["inplace_backward"] = "use tridal.linear_cross_entropy, which needs no more memory"


class _Options(TypedDict, total=False):
    """The arguments of `cross_entropy` that do not change the type of the result."""

    ignore_index: int
    reduction: Literal["none", "mean", "sum"]
    label_smoothing: float
    z_loss: float
    softcap: float | None
    stream: Any


@overload
def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, return_lse: Literal[False] = False,
    **options: Unpack[_Options],
) -> Tensor: ...  # fmt: skip
@overload
def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, return_lse: Literal[True],
    **options: Unpack[_Options],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, return_lse: bool,
    **options: Unpack[_Options],
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
@op_function(CROSS_ENTROPY)
def cross_entropy(
    call: Any, /, input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
    reduction: Literal["none", "mean", "sum"] = "mean", label_smoothing: float = 0.0, z_loss: float = 0.0,
    softcap: float | None = None, return_lse: bool = False, stream: Any = None, **removed: Any,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """The cross-entropy of logits and targets, as torch.nn.functional.cross_entropy defines it.

    Args:
        input: logits of shape (C,), (N, C) or (N, C, d1, ...), with any strides. Dim 1 holds the classes.
        target: indices of classes of shape (), (N,) or (N, d1, ...), in int64 or uint8; or probabilities of the shape
            and device of the input, in a floating-point dtype.
        weight: a factor for each class, of shape (C,).
        ignore_index: rows with this target index have zero loss and gradient, and do not count in the mean.
        reduction: "mean" divides the sum by the sum of the weights of the targets, or by the number of rows for
            probabilities. It is NaN if there are no such targets. "none" returns the loss of each row.
        label_smoothing: the share of each target, from 0 to 1, that the uniform distribution replaces.
        z_loss: adds z_loss * logsumexp^2 to the loss of each target index, times its weight, or to that of each row for
            probabilities.
        softcap: replaces the logits by softcap * tanh(input / softcap).
        return_lse: also returns the log-sum-exp of each row, which is differentiable.
        stream: see `tridal.softmax`. The backward also uses it.

    Returns:
        The loss in the input's dtype; in torch's promoted dtype for probabilities; in float32 under autocast. Sums
        are float32 (float64 for float64). With `return_lse`, (loss, lse), lse in the dtype of the sums.

    Raises:
        TypeError, ValueError, RuntimeError, DTypeError, LayoutError, StreamError: an argument is wrong.
        IndexError: a target on the CPU is out of range. On other devices, the row's loss and gradient are NaN.
        NoBackendError: no backend serves the tensor and the setting `fallback` is "error".

    Example:
        >>> logits, target = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 2])
        >>> tridal.cross_entropy(logits, target)
        tensor(0.8955)
        >>> loss, lse = tridal.cross_entropy(logits, target, z_loss=1e-4, return_lse=True)
        >>> lse
        tensor([2.2395, 1.5514])
    """
    if removed:
        raise unexpected(cross_entropy, removed)
    op = CROSS_ENTROPY.name
    check_bool(op, "return_lse", return_lse)
    options = checked_options(
        op, reduction, ignore_index=ignore_index, label_smoothing=label_smoothing, z_loss=z_loss, softcap=softcap
    )
    check_tensors(CROSS_ENTROPY.signature, input=input, target=target, weight=weight)
    check_floating(op, "input", input)
    if not input.dim():
        raise ShapeError(wrong(op, "input", "have the shape (C,), (N, C) or (N, C, d1, ...)", "()"))
    autocast, dim = autocast_enabled(input.device.type), classes_dim(input)
    check_target(op, input.shape, dim, target, ignore_index)
    check_weight(op, input.shape[dim], input.dtype, target, weight, autocast)
    target = target.long() if target.dtype is torch.uint8 else target  # an ignore_index of -100 would wrap to 156
    dtype = _result_dtype(input.dtype, target, weight, autocast)
    if not is_distributed(input, target, weight) or records_gradient(weight):
        results = 1 + return_lse
        return call(input, target, weight, *options, dtype, results=results, checked=True)  # type: ignore[no-any-return]
    from tridal.library.losses.dtensor import reduced

    loss, lse = reduced(input, target, weight, options, dtype)
    return (loss, lse) if return_lse else loss


def _result_dtype(dtype: torch.dtype, target: Tensor, weight: Tensor | None, autocast: bool) -> torch.dtype:
    if autocast:
        dtype = torch.promote_types(dtype, torch.float32)
    if target.is_floating_point():
        dtype = torch.promote_types(dtype, target.dtype)
        dtype = dtype if weight is None else torch.promote_types(dtype, weight.dtype)
    return dtype


@op_function(LINEAR_CROSS_ENTROPY)
def linear_cross_entropy(
    call: Any, input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None,
    weight: Tensor | None = None, reduction: Literal["none", "mean", "sum"] = "mean", ignore_index: int | None = None,
    label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None, chunk_size: int | None = None,
    accum_dtype: torch.dtype | None = None, stream: Any = None,
) -> Tensor:  # fmt: skip
    """cross_entropy(linear(input, linear_weight, linear_bias), target), without storing all logits.

    Args:
        input: shape (H,), (N, H) or (B, T, H).
        linear_weight: shape (C, H), or (C, d1, ..., H) for the logits (N, C, d1, ...).
        target: indices of shape (), (N,), (B, T) or (N, d1, ...), in int64 or uint8; or probabilities of the shape of
            the logits, (C,), (N, C), (B, T, C) or (N, C, d1, ...).
        linear_bias: shape (C,) or (C, d1, ...).
        weight: a factor for each class, of shape (C,).
        ignore_index: None means -100 for indices. It must be None for probabilities.
        reduction, label_smoothing, z_loss, softcap: see `tridal.cross_entropy`.
        chunk_size: the number of rows whose logits exist at the same time. By default, it depends on shapes and
            dtypes. With "mean" and "sum", the forward computes the gradients of the arguments that need one; with
            "none", the backward recomputes the logits.
        accum_dtype: the dtype in which gradients of the weight and the bias are summed over chunks; float32 by default
            (float64 for float64). 16 bits save memory: the sum takes half the bytes, and default chunks are smaller.
        stream: see `tridal.softmax`. Matmuls and the backward also use it.

    Returns:
        The loss in the dtype of the logits; in torch's promoted dtype for probabilities; in float32 under autocast.
        With reduction "none", one loss per target index, or per row of probabilities.

    Raises:
        TypeError, ValueError, RuntimeError, DTypeError, LayoutError, IndexError, StreamError: an argument is wrong, see
            `tridal.cross_entropy`.

    Example:
        >>> hidden, weight = torch.eye(2, 3), torch.eye(4, 3, requires_grad=True)
        >>> loss = tridal.linear_cross_entropy(hidden, weight, torch.tensor([0, 3]))
        >>> loss.backward()
        >>> weight.grad.shape
        torch.Size([4, 3])
    """
    op, signature = LINEAR_CROSS_ENTROPY.name, LINEAR_CROSS_ENTROPY.signature
    given = {"input": input, "linear_weight": linear_weight, "target": target, "linear_bias": linear_bias}
    check_tensors(signature, **given, weight=weight)
    autocast = autocast_enabled(input.device.type)
    options = checked_options(
        op, reduction, ignore_index=-100 if ignore_index is None else ignore_index, label_smoothing=label_smoothing,
        z_loss=z_loss, softcap=softcap,
    )  # fmt: skip
    shape, chunks = check_layer(op, input, linear_weight, linear_bias, chunk_size, accum_dtype, autocast)
    dim, hint = input.dim() - 1, ""
    # The last comparison would be a guard of an exported program, so it is made only for an error.
    is_wrong = input.dim() == 2 and target.dim() == 1 and target.shape[0] != input.shape[0]
    if is_wrong and target.shape[0] == linear_weight.shape[0]:
        hint = "the first argument is the input, and the second one linear_weight"
    check_target(op, shape, dim, target, ignore_index, hint)
    check_weight(op, shape[dim], input.dtype, target, weight, autocast)
    dtype = _result_dtype(chunks[0], target, weight, autocast)
    x, index = input, target.long() if target.dtype is torch.uint8 else target
    if not dim:
        x, index = input.unsqueeze(0), index.unsqueeze(0) if target.shape == shape else index.reshape(1)
    elif dim > 1:
        x, index = input.flatten(0, -2), index.flatten(0, dim - 1)
    needs = [records_gradient(given[name]) and reduction != "none" for name in LAYER]
    arguments = (x, linear_weight, index, linear_bias, weight, *options, dtype, *chunks, needs)
    # A transform hides the placements of its tensors, and `call` computes it with torch's ops.
    if is_distributed(*given.values(), weight) and (_compiling() or not transforms_active()):
        from tridal.library.losses.dtensor import check_input
        from tridal.library.losses.dtensor import linear_cross_entropy as distributed

        check_input(op, input, linear_weight)
        loss: Tensor | None = distributed(Arguments(signature, arguments).named)
    elif not _compiling() and tracing_state() is not None:
        # torch.jit.trace does not support lists of bools
        loss = reference(LINEAR_CROSS_ENTROPY, Arguments(signature, arguments))[0]
    else:
        # A hook may keep the saved gradients, so the backward must not overwrite them.
        overwrites = not _compiling() and not saves_through_hooks()
        loss = call(*arguments, overwrites=overwrites, checked=True)
    assert loss is not None
    return loss if reduction != "none" else loss.view((*input.shape[:-1], *linear_weight.shape[1:-1]))
