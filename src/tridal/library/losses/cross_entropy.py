"""Cross-entropy: its kernels, and its maths in torch's ops. Classes are dim 1, or dim 0 of one row of logits.

Targets are indices of classes (int64 or uint8) or probabilities (floating point, of the shape of the logits).
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy

from tridal.ops.arguments import DTYPE, Argument, Result, number, whole
from tridal.ops.op import Op
from tridal.ops.row_reduce import RowReduce, accumulator
from tridal.runtime.row_kernel import RowKernel, Statistic

Tensor = torch.Tensor
MODULE = "tridal.library.losses.kernels.cross_entropy"
NONE, MEAN, SUM = range(3)
REDUCTIONS = {"none": NONE, "mean": MEAN, "sum": SUM}

_LSE = (
    Statistic("row_max", "max", term="logit"),
    Statistic("row_sum", "accurate_sum", term="exp_term", rebase="rebase"),
)
FORWARD = RowKernel(
    name="cross_entropy", module=MODULE, reads=("x",), row_index="index", column_reads=("weight",), statistics=_LSE,
    row_value="lse", writes=(), row_writes=("loss", "lse"), parameters=("label_smoothing", "z_loss"),
    padding=float("-inf"), neutral_padding=True, live_tiles=1,
)  # fmt: skip
BACKWARD = RowKernel(
    name="cross_entropy_backward", module=MODULE, reads=("x",), row_reads=("row_lse", "grad"), row_index="index",
    column_reads=("weight", "weight_sum"), statistics=(), row_value="target_gradient", writes=("gradient",),
    parameters=("label_smoothing", "z_loss"), live_tiles=1,
)  # fmt: skip
BACKWARD_WITH_LSE = RowKernel(
    name="cross_entropy_with_lse_backward", module=MODULE, reads=("x",), row_reads=("grad", "lse_grad"),
    row_index="index", column_reads=("weight", "weight_sum"), statistics=_LSE, row_value="target_gradient",
    writes=("gradient_of_statistics",), parameters=("label_smoothing", "z_loss"), padding=float("-inf"),
    neutral_padding=True, live_tiles=2,
)  # fmt: skip
WITH_GRADIENT = RowKernel(
    name="cross_entropy_with_gradient", module=MODULE, reads=("x",), row_reads=("grad", "target_logit"),
    row_index="index", column_reads=("weight",), statistics=_LSE, row_value="target_gradient",
    writes=("gradient_of_statistics",), row_writes=("loss_of_logit",), parameters=("z_loss",), padding=float("-inf"),
    neutral_padding=True, live_tiles=2, constants=(("label_smoothing", None), ("lse_grad", None), ("weight_sum", None)),
)  # fmt: skip
"""Losses and gradients in one kernel. The targets' logits are an input, because the gradient may overwrite them."""
SMOOTH = RowKernel(
    name="cross_entropy_smooth", module=MODULE, reads=("x",), row_reads=("row_loss", "row_lse"), row_index="index",
    column_reads=("weight",), statistics=(Statistic("distances", "sum", term="distance"),), writes=(),
    row_writes=("smooth_loss",), parameters=("label_smoothing",), live_tiles=1,
)  # fmt: skip
LSE = RowKernel(
    name="cross_entropy_lse", module=MODULE, reads=("x",), statistics=_LSE, row_value="lse", writes=(),
    row_writes=("lse",), padding=float("-inf"), neutral_padding=True, live_tiles=1,
)  # fmt: skip
PROBABILITIES = RowKernel(
    name="cross_entropy_probabilities", module=MODULE, reads=("x", "target"), row_reads=("row_lse",),
    column_reads=("weight",), statistics=(Statistic("distances", "sum", term="target_distance"),), writes=(),
    row_writes=("probability_loss",), parameters=("label_smoothing", "z_loss"), live_tiles=2,
)  # fmt: skip
PROBABILITIES_BACKWARD = RowKernel(
    name="cross_entropy_probabilities_backward", module=MODULE, reads=("x", "target"), row_reads=("row_lse", "grad"),
    column_reads=("weight",), statistics=(Statistic("total", "sum", term="mass"),), writes=("probability_gradient",),
    parameters=("label_smoothing", "z_loss"),
)  # fmt: skip
REDUCE = RowKernel(
    name="cross_entropy_reduce", module="tridal.library.losses.kernels.reduction", reads=("x",),
    column_reads=("target", "weight"),
    statistics=(Statistic("loss_sum", "sum", term="x"), Statistic("weight_sum", "sum", term="row_weight")),
    writes=(), row_writes=("weighted_mean", "weight_sum"), live_tiles=1,
)  # fmt: skip
REDUCE_ALL = replace(
    REDUCE, name="cross_entropy_reduce_all", column_reads=(), statistics=REDUCE.statistics[:1],
    row_writes=("loss_sum", "mean_of_losses"),
)  # fmt: skip


@functools.lru_cache(maxsize=1024)
def bound(kernel: RowKernel, softcap: float | None, constants: tuple[tuple[str, Any], ...]) -> RowKernel:
    """Returns a kernel with its constants. Capped logits beyond the end of a row are not -inf, so they are masked."""
    if softcap is not None:
        kernel = replace(kernel, neutral_padding=False)
    return kernel.bind(SOFTCAP=softcap, **dict(constants))


def classes_dim(input: Tensor) -> int:
    """Returns the dim of the classes."""
    return min(input.dim() - 1, 1)


def target_weights(target: Tensor, weight: Tensor | None, ignore_index: int, dtype: torch.dtype) -> Tensor:
    """Returns the weight of each target index: zero if it is ignored."""
    kept = target != ignore_index
    if weight is None:
        return kept.to(dtype)
    if not weight.shape[0]:
        return torch.zeros_like(target, dtype=dtype)
    found = weight.to(dtype)[torch.where(kept, target, 0).clamp(0, weight.shape[0] - 1).long()]
    return torch.where(kept, found, 0.0)


def reduce_rows(
    rows: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor | None]:
    """Returns the reduced loss, and for the mean over target indices also the sum of their weights."""
    if reduction == NONE:
        return rows, None
    if reduction == SUM:
        return rows.sum(), None
    if target.is_floating_point():
        return rows.sum() / (rows.numel() if target.numel() else 0), None
    if weight is None:
        denominator = (target != ignore_index).sum(dtype=rows.dtype)
    else:
        denominator = target_weights(target, weight, ignore_index, rows.dtype).sum()
    return rows.sum() / denominator, denominator


def row_gradient(grad: Tensor, like: Tensor, denominator: Tensor | None, reduction: int) -> Tensor:
    """Returns the gradient of each row's loss, in the shape and dtype of `like`, from that of the reduced loss."""
    grad = grad.to(like.dtype)
    if denominator is not None:
        grad = grad / denominator
    elif reduction == MEAN:
        grad = grad / like.numel()
    return grad.expand(like.shape)


def _capped(input: Tensor, dtype: torch.dtype, softcap: float | None) -> Tensor:
    x = input.to(dtype)
    return x if softcap is None else softcap * torch.tanh(x / softcap)


def _logsumexp(x: Tensor) -> Tensor:
    dim = classes_dim(x)
    return x.logsumexp(dim) if x.shape[dim] else x.sum(dim) - torch.inf  # torch rejects rows without elements


def reference(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, label_smoothing: float,
    z_loss: float, softcap: float | None, dtype: torch.dtype,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the loss in `dtype`, the log-sum-exp of each row, and the denominator of the mean over indices."""
    wide, probabilities = accumulator(input, target, weight), target.is_floating_point()
    x, weights = _capped(input, wide, softcap), None if weight is None else weight.to(wide)
    lse = _logsumexp(x)
    rows = cross_entropy(
        x, target.to(wide) if probabilities else target, weights, ignore_index=ignore_index, reduction="none",
        label_smoothing=label_smoothing,
    )  # fmt: skip
    if z_loss:
        penalty = z_loss * lse.square()
        kept = None if probabilities else target_weights(target, weights, ignore_index, wide)
        rows = rows + (penalty if kept is None else torch.where(kept == 0, 0.0, penalty * kept))
    loss, denominator = reduce_rows(rows, target, weights, reduction, ignore_index)
    return loss.to(dtype), lse, denominator


class Classes(NamedTuple):
    """The classes of logits whose rows may be sharded over ranks."""

    columns: Tensor
    """The index of each class of the shard, of a shape that can be broadcast to the logits."""
    size: int
    """The number of classes of all shards."""
    reduce: RowReduce
    """Reduces the shards of each row along the dim of the classes."""


def all_classes(x: Tensor) -> Classes:
    """Returns the classes of logits that are not sharded."""
    dim = classes_dim(x)
    columns = torch.arange(x.shape[dim], device=x.device).view(-1, *[1] * (x.dim() - 1 - dim))
    return Classes(columns, x.shape[dim], RowReduce(x, dim))


def _targets(
    y: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, label_smoothing: float, classes: Classes
) -> tuple[Tensor, Tensor]:
    """Returns the weighted target of each class, and the weight of each row that z_loss and the mean use.

    The weight of a row is zero if its target is ignored, and NaN if the target is out of range.
    """
    dim, shape = classes_dim(y), [1] * (y.dim() - 1 - classes_dim(y))
    weights = None if weight is None else weight.to(y.dtype).view(-1, *shape)
    if target.is_floating_point():
        uniform = torch.full_like(y, 1 / max(classes.size, 1))
        mixed = torch.lerp(target.to(y.dtype), uniform, label_smoothing)
        return (mixed if weights is None else mixed * weights), torch.ones_like(mixed.sum(dim, keepdim=True))
    index = target.unsqueeze(dim)
    kept = index != ignore_index
    invalid = kept & ((index < 0) | (index >= classes.size))
    one_hot = (classes.columns == index).to(y.dtype)
    scale = kept.to(y.dtype) if weights is None else kept * classes.reduce(one_hot * weights, "sum")
    scale = torch.where(invalid, torch.nan, scale)
    wanted = one_hot * scale * (1 - label_smoothing)
    if label_smoothing:
        spread = kept.to(y.dtype) * (label_smoothing / max(classes.size, 1))
        wanted = wanted + (spread if weights is None else spread * weights)
    return wanted, scale


def sharded_rows(
    input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, label_smoothing: float, z_loss: float,
    softcap: float | None, classes: Classes,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns loss, log-sum-exp and weight of each row from shards of the rows, which exchange only reductions."""
    dim, reduce = classes_dim(input), classes.reduce
    y = _capped(input, accumulator(input, target, weight), softcap)
    row_max = reduce(y, "max")
    row_max = torch.where(row_max.isfinite(), row_max, 0.0)
    lse = row_max + reduce((y - row_max).exp(), "sum").log()
    wanted, scale = _targets(y, target, weight, ignore_index, label_smoothing, classes)
    rows = reduce(torch.where(wanted == 0, 0.0, wanted * (lse - y)), "sum")
    rows = rows + torch.where(scale == 0, 0.0, z_loss * lse.square() * scale) if z_loss else rows
    rows = torch.where(scale.isnan(), torch.nan, rows)
    return rows.squeeze(dim), lse.squeeze(dim), scale.squeeze(dim)


def gradient(
    grad: Tensor | None, lse_grad: Tensor | None, input: Tensor, target: Tensor, weight: Tensor | None, lse: Tensor,
    denominator: Tensor | None, reduction: int, ignore_index: int, label_smoothing: float, z_loss: float,
    softcap: float | None, output_mask: list[bool], classes: Classes | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the gradients of the logits and of target probabilities. `classes` describes shards of rows."""
    dim, wide = classes_dim(input), accumulator(input, target, weight)
    y = _capped(input, wide, softcap)
    classes = all_classes(y) if classes is None else classes
    row_max = classes.reduce(y, "max").detach()  # it cancels out
    exp = (y - row_max).exp()
    row_sum = classes.reduce(exp, "sum")
    p, exact_lse = exp / row_sum, torch.where(row_max.isfinite(), row_max, 0.0) + row_sum.log()
    factor, wanted = torch.zeros_like(row_sum), torch.zeros_like(y)
    target_gradient = torch.zeros_like(target) if target.is_floating_point() and output_mask[1] else None
    if grad is not None:
        rows = row_gradient(grad, lse, denominator, reduction).unsqueeze(dim)
        if target_gradient is not None:
            weights = None if weight is None else weight.to(wide).view(-1, *[1] * (input.dim() - 1 - dim))
            kept = (exact_lse - y) * (1 - label_smoothing) * rows
            target_gradient = (kept if weights is None else kept * weights).to(target.dtype)
        wanted, scale = _targets(y, target, weight, ignore_index, label_smoothing, classes)
        if not target.is_floating_point():
            rows = torch.where(target.unsqueeze(dim) == ignore_index, 0.0, rows)
        factor = classes.reduce(wanted, "sum")
        factor = rows * (factor + 2 * z_loss * exact_lse * scale if z_loss else factor)
        wanted = wanted * rows
    if lse_grad is not None:
        factor = factor + lse_grad.unsqueeze(dim)
    dx = p * factor - wanted
    if softcap is not None:
        dx = dx * (1 - (y / softcap).square())
    return dx.to(input.dtype) if output_mask[0] else None, target_gradient


_KERNELS = (FORWARD, BACKWARD, BACKWARD_WITH_LSE, WITH_GRADIENT, SMOOTH, LSE, PROBABILITIES, PROBABILITIES_BACKWARD)
NUMBERS = (
    number("reduction", type="int"), number("ignore_index", type="int"), number("label_smoothing"), number("z_loss"),
    Argument("softcap", "float", optional=True),
)  # fmt: skip
CROSS_ENTROPY = Op(
    name="cross_entropy",
    arguments=(
        whole("input", differentiable=True), whole("target", differentiable=True), whole("weight", optional=True),
        *NUMBERS, DTYPE,
    ),
    results=(
        Result("loss", "whole", gradient="grad"), Result("lse", "whole", gradient="lse_grad"),
        Result("denominator", "whole", optional=True),
    ),
    kernels=tuple(
        bound(kernel, None, (("IGNORE_INDEX", -100), ("CLASSES", 1)))
        for kernel in _KERNELS
    ),
    reference=reference,
    gradient=gradient,
    saves=("input", "target", "weight", "lse", "denominator"),
    gradient_numbers=NUMBERS,
    of_rows=False,
    cases="tridal.library.losses.cases:cases",
    dtensor="tridal.library.losses.dtensor",
    benchmark="tridal.library.losses.benchmark:CROSS_ENTROPY",
)  # fmt: skip
