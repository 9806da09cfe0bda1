"""The math of cross-entropy in torch's ops: the loss of each row, its reduction, and the gradient of the logits.

Tensors of `reference` and `gradient` can be broadcast to the logits, as those of `Op.reference`. Ranks that have shards
of the rows exchange only reductions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy

from tridal.ops import RowReduce, has_tangent, wrong
from tridal.pytorch import has_values, transforms_active

Tensor = torch.Tensor
NONE, MEAN, SUM = range(3)
REDUCTIONS = {"none": NONE, "mean": MEAN, "sum": SUM}


class Options(NamedTuple):
    """The options of a loss, in the order in which the registered ops have them."""

    reduction: int
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float | None

    @classmethod
    def of(cls, named: Mapping[str, Any]) -> Options:
        """Returns those among the arguments of a call."""
        return cls(*[named[name] for name in cls._fields])


def classes_dim(input: Tensor) -> int:
    """The dim of the classes: 1, or 0 if there is no dim of rows."""
    return min(input.dim() - 1, 1)


def check_range(
    op: str, target: Tensor, classes: int, ignore_index: int | None, name: str = "target"
) -> None:  # fmt: skip
    """Raises IndexError if a target index is not one of a class. This waits for the device."""
    outside = (target != ignore_index) & ((target < 0) | (target >= classes))
    if outside.any():
        raise IndexError(wrong(op, name, f"hold classes from 0 to {classes - 1}", int(target[outside][0])))


def target_weights(target: Tensor, weight: Tensor | None, ignore_index: int, dtype: torch.dtype) -> Tensor:
    """Returns the weight of each target index: zero if it is ignored."""
    kept = target != ignore_index
    if weight is None:
        return kept.to(dtype)
    if not weight.shape[0]:
        return torch.zeros_like(target, dtype=dtype)
    found = weight.to(dtype)[torch.where(kept, target, 0).clamp(0, weight.shape[0] - 1).long()]
    return torch.where(kept, found, 0.0)


def mean_denominator(target: Tensor, weight: Tensor | None, options: Options, dtype: torch.dtype) -> Tensor | None:
    """Returns the sum of the weights of target indices, by which a mean is divided. Other losses have None."""
    if options.reduction != MEAN or target.is_floating_point():
        return None
    if weight is None:
        return (target != options.ignore_index).sum(dtype=dtype)
    return target_weights(target, weight, options.ignore_index, dtype).sum()


def reduce_rows(
    rows: Tensor, target: Tensor, weight: Tensor | None, options: Options, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Returns the reduced loss in a dtype, and its `mean_denominator`."""
    if options.reduction == NONE:
        return rows.to(dtype), None
    denominator, loss = mean_denominator(target, weight, options, rows.dtype), rows.sum()
    if denominator is not None:
        loss = loss / denominator
    elif options.reduction == MEAN:
        loss = loss / (rows.numel() if target.numel() else 0)
    return loss.to(dtype), denominator


def row_gradient(grad: Tensor, rows: int, denominator: Tensor | None, reduction: int) -> Tensor:
    """Returns the gradient of each row's loss, from that of the reduced loss. It can be broadcast to the rows."""
    if denominator is not None:
        return grad / denominator
    return grad / rows if reduction == MEAN else grad


def capped(x: Tensor, softcap: float | None) -> Tensor:
    """Returns softcap * tanh(x / softcap), or x without a softcap."""
    return x if softcap is None else softcap * torch.tanh(x / softcap)


def _targets(
    y: Tensor, target: Tensor, weight: Tensor | None, reduce: RowReduce, options: Options
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns the weighted target of each class, and the weight of each row that z_loss and the mean use.

    The weight of a row is zero if its target is ignored, and NaN if the target is out of range.
    """
    smoothing, classes = options.label_smoothing, max(reduce.count, 1)
    if target.is_floating_point():
        mixed = torch.lerp(target, torch.full_like(y, 1 / classes), smoothing)
        return (mixed if weight is None else mixed * weight), torch.ones_like(mixed.sum(reduce.dim, keepdim=True))
    kept = target != options.ignore_index
    invalid = kept & ((target < 0) | (target >= reduce.count))
    one_hot = (reduce.columns(y) == target).to(y.dtype)
    scale = kept.to(y.dtype) if weight is None else kept * reduce(one_hot * weight, "sum")
    scale = torch.where(invalid, torch.nan, scale)
    wanted = one_hot * scale * (1 - smoothing)
    if smoothing:
        spread = kept.to(y.dtype) * (smoothing / classes)
        wanted = wanted + (spread if weight is None else spread * weight)
    return wanted, scale


def reference(
    input: Tensor, target: Tensor, weight: Tensor | None, reduce: RowReduce, **numbers: Any
) -> tuple[Tensor | None, ...]:
    """Returns the loss, the log-sum-exp of each row, and the denominator of the mean over indices."""
    options, dim, probabilities = Options(**numbers), reduce.dim, target.is_floating_point()
    x, ignore_index, dual = capped(input, options.softcap), options.ignore_index, has_tangent(input, target, weight)
    if reduce.sharded or dual:
        if dual and input.is_cpu and not probabilities and has_values(input, target):
            check_range("cross_entropy", target, reduce.count, ignore_index)
        row_max = reduce(x, "max")
        row_max = torch.where(row_max.isfinite(), row_max, 0.0)
        lse = row_max + reduce((x - row_max).exp(), "sum").log()
        wanted, scale = _targets(x, target, weight, reduce, options)
        rows = reduce(torch.where(wanted == 0, 0.0, wanted * (lse - x)), "sum")
        rows = torch.where(scale.isnan(), torch.nan, rows)
    else:
        # torch needs a class. Of a DTensor, torch does not squeeze a dim that it has kept.
        lse = x.logsumexp(dim).unsqueeze(dim) if x.shape[dim] else reduce(x, "sum") - torch.inf
        flat, index = None if weight is None else weight.flatten(), target if probabilities else target.squeeze(dim)
        # torch's smoothing of indices writes into a tensor, which may have no batch under vmap.
        smoothing = 0.0 if probabilities or not transforms_active() else options.label_smoothing
        given: Any = {"ignore_index": ignore_index, "label_smoothing": options.label_smoothing - smoothing}
        try:
            rows = cross_entropy(x, index, flat, **given, reduction="none").unsqueeze(dim)
        except IndexError:
            if has_values(input, target):  # torch's message does not name the op
                check_range("cross_entropy", target, reduce.count, ignore_index)
            raise
        scale = torch.ones_like(lse) if probabilities else target_weights(target, flat, ignore_index, x.dtype)
        if smoothing:
            smooth = reduce(lse - x if weight is None else (lse - x) * weight, "sum") / max(reduce.count, 1)
            rows = (1 - smoothing) * rows + torch.where(target == ignore_index, 0.0, smoothing * smooth)
    if options.z_loss:
        rows = rows + torch.where(scale == 0, 0.0, options.z_loss * lse.square() * scale)
    if options.reduction == NONE:
        return rows, lse, None
    loss = reduce.total(rows)
    if options.reduction == SUM:
        return loss, lse, None
    if probabilities:
        return loss / (reduce.rows if reduce.count else 0), lse, None
    denominator = reduce.total(scale)
    return loss / denominator, lse, denominator


def gradient(
    grad: Tensor | None, lse_grad: Tensor | None, input: Tensor, target: Tensor, weight: Tensor | None, lse: Tensor,
    denominator: Tensor | None, reduce: RowReduce, output_mask: list[bool], **numbers: Any,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the gradients of the logits and of target probabilities."""
    options, with_target = Options(**numbers), target.is_floating_point() and output_mask[1]
    y, z_loss = capped(input, options.softcap), options.z_loss
    row_max = reduce(y, "max").detach()  # it cancels out
    exp = (y - row_max).exp()
    row_sum = reduce(exp, "sum")
    p, exact_lse = exp / row_sum, torch.where(row_max.isfinite(), row_max, 0.0) + row_sum.log()
    factor, wanted, target_gradient = torch.zeros_like(row_sum), torch.zeros_like(y), None
    if grad is not None:
        rows = row_gradient(grad, reduce.rows, denominator, options.reduction)
        if with_target:
            target_gradient = (exact_lse - y) * (1 - options.label_smoothing) * rows
            target_gradient = target_gradient if weight is None else target_gradient * weight
        wanted, scale = _targets(y, target, weight, reduce, options)
        if not target.is_floating_point():
            rows = torch.where(target == options.ignore_index, 0.0, rows)
        factor = reduce(wanted, "sum")
        factor = rows * (factor + 2 * z_loss * exact_lse * scale if z_loss else factor)
        wanted = wanted * rows
    elif with_target:
        target_gradient = torch.zeros_like(target)
    if lse_grad is not None:
        factor = factor + lse_grad
    dx = p * factor - wanted
    return dx if options.softcap is None else dx * (1 - (y / options.softcap).square()), target_gradient
