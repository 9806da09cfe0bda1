"""Cross-entropy: the public function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import torch

from tridal.errors import REMOVED, ShapeError, unexpected
from tridal.library.losses.checks import check_numbers, check_target, check_weight
from tridal.library.losses.cross_entropy import CROSS_ENTROPY
from tridal.library.losses.maths import REDUCTIONS, classes_dim
from tridal.ops import check_bool, check_floating, wrong
from tridal.pytorch import (
    autocast_enabled,
    check_tensors,
    is_distributed,
    op_function,
    records_gradient,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

Tensor = torch.Tensor
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
    call: Any,
    /,
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
    stream: Any = None,
    **removed: Any,
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
        stream: see `tridal.softmax`. The backward uses it, too.

    Returns:
        The loss in the input's dtype; in torch's promoted dtype for probabilities; in float32 under autocast. Sums
        are float32 (float64 for float64). With `return_lse`, (loss, lse), lse in the dtype of the sums.

    Raises:
        TypeError, ValueError, RuntimeError, DTypeError, LayoutError, StreamError: an argument is wrong.
        IndexError: a target is out of range, on the CPU. On other devices the loss and the row's gradient are NaN.
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
    name = CROSS_ENTROPY.name
    check_bool(name, "return_lse", return_lse)
    check_numbers(name, reduction, ignore_index, label_smoothing, z_loss, softcap)
    check_tensors(CROSS_ENTROPY.signature, input=input, target=target, weight=weight)
    check_floating(name, "input", input)
    if not input.dim():
        raise ShapeError(wrong(name, "input", "have the shape (C,), (N, C) or (N, C, d1, ...)", "()"))
    autocast, dim = autocast_enabled(input.device.type), classes_dim(input)
    check_target(name, input.shape, dim, target, ignore_index)
    check_weight(name, input.shape[dim], input.dtype, target, weight, autocast)
    target = target.long() if target.dtype is torch.uint8 else target  # an ignore_index of -100 would wrap to 156
    number = REDUCTIONS[reduction]
    cap = None if softcap is None else float(softcap)
    dtype = result_dtype(input.dtype, target, weight, autocast)
    numbers = (int(ignore_index), float(label_smoothing), float(z_loss), cap, dtype)
    if is_distributed(input, target, weight) and not records_gradient(weight):
        from tridal.library.losses.dtensor import reduced

        loss, lse = reduced(input, target, weight, number, *numbers)
    else:
        return call(input, target, weight, number, *numbers, results=1 + return_lse, checked=True)  # type: ignore[no-any-return]
    return (loss, lse) if return_lse else loss


def result_dtype(dtype: torch.dtype, target: Tensor, weight: Tensor | None, autocast: bool) -> torch.dtype:
    """Returns the dtype of the loss of logits of a dtype, as torch promotes it."""
    if autocast:
        dtype = torch.promote_types(dtype, torch.float32)
    if target.is_floating_point():
        dtype = torch.promote_types(dtype, target.dtype)
        dtype = dtype if weight is None else torch.promote_types(dtype, weight.dtype)
    return dtype
