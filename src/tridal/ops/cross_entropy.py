"""Cross-entropy: its kernels, and its maths in torch's ops. Classes are dim 1, or dim 0 of one row of logits.

Targets are indices of classes (int64 or uint8) or probabilities (floating point, of the shape of the logits).
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from tridal.ops.fused_op import FusedOp
from tridal.runtime.row_kernel import RowKernel, Statistic

Tensor = torch.Tensor
MODULE = "tridal.kernels.cross_entropy"
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
    writes=("gradient_with_lse",), parameters=("label_smoothing", "z_loss"), padding=float("-inf"),
    neutral_padding=True, live_tiles=2,
)  # fmt: skip
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


@functools.lru_cache(maxsize=1024)
def bound(kernel: RowKernel, softcap: float | None, constants: tuple[tuple[str, Any], ...]) -> RowKernel:
    """Returns a kernel with its constants. Capped logits beyond the end of a row are not -inf, so they are masked."""
    if softcap is not None:
        kernel = replace(kernel, neutral_padding=False)
    return kernel.bind(SOFTCAP=softcap, **dict(constants))


def classes_dim(input: Tensor) -> int:
    """Returns the dim of the classes."""
    return min(input.dim() - 1, 1)


def accumulator(*tensors: Tensor | None) -> torch.dtype:
    """Returns the dtype of losses and sums of rows: float64 if one of the tensors is float64, else float32."""
    wide = any(tensor is not None and tensor.dtype is torch.float64 for tensor in tensors)
    return torch.float64 if wide else torch.float32


def target_weights(target: Tensor, weight: Tensor | None, ignore_index: int, dtype: torch.dtype) -> Tensor:
    """Returns the weight of each target index: zero if it is ignored."""
    kept = target != ignore_index
    if weight is None:
        return kept.to(dtype)
    return kept * weight.to(dtype)[torch.where(kept, target, 0).clamp(0, max(weight.shape[0] - 1, 0)).long()]


def reduce_rows(
    rows: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor | None]:
    """Returns the reduced loss, and for the mean over target indices also the sum of their weights."""
    if reduction == NONE:
        return rows, None
    if reduction == SUM:
        return rows.sum(), None
    if target.is_floating_point():
        return rows.mean(), None
    if weight is None:
        denominator = (target != ignore_index).sum(dtype=rows.dtype)
    else:
        denominator = target_weights(target, weight, ignore_index, rows.dtype).sum()
    return rows.sum() / denominator, denominator


def row_gradient(grad: Tensor, like: Tensor, denominator: Tensor | None, reduction: int) -> Tensor:
    """Returns the gradient of each row's loss, in the shape and dtype of `like`, from that of the reduced loss."""
    if denominator is not None:
        grad = grad / denominator
    elif reduction == MEAN:
        grad = grad / like.numel()
    return grad.to(like.dtype).expand(like.shape)


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


def gradient(
    grad: Tensor | None, lse_grad: Tensor | None, input: Tensor, target: Tensor, weight: Tensor | None, lse: Tensor,
    denominator: Tensor | None, reduction: int, ignore_index: int, label_smoothing: float, z_loss: float,
    softcap: float | None, output_mask: list[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the gradients of the logits and of target probabilities."""
    dim, wide = classes_dim(input), accumulator(input, target, weight)
    y = _capped(input, wide, softcap)
    p, lse, classes = y.softmax(dim), _logsumexp(y), input.shape[dim]
    weights = None if weight is None else weight.to(wide).view(-1, *[1] * (input.dim() - 1 - dim))
    total = torch.zeros_like(lse)
    wanted = torch.zeros_like(y)
    target_gradient = None
    if grad is not None:
        rows = row_gradient(grad, lse, denominator, reduction)
        if target.is_floating_point():
            scale = torch.ones_like(lse)
            wanted = torch.lerp(target.to(wide), torch.full_like(y, 1 / max(classes, 1)), label_smoothing)
            wanted = wanted if weights is None else wanted * weights
            if output_mask[1]:
                kept = (lse.unsqueeze(dim) - y) * (1 - label_smoothing) * rows.unsqueeze(dim)
                target_gradient = (kept if weights is None else kept * weights).to(target.dtype)
        else:
            kept = target != ignore_index
            scale = target_weights(target, weight, ignore_index, wide)
            scale = torch.where(kept & ((target < 0) | (target >= classes)), torch.nan, scale)
            columns = torch.arange(classes, device=target.device).view(-1, *[1] * (input.dim() - 1 - dim))
            one_hot = (columns == target.unsqueeze(dim)).to(wide)
            wanted = one_hot * (scale * (1 - label_smoothing)).unsqueeze(dim)
            if label_smoothing:
                spread = kept.unsqueeze(dim).to(wide) * (label_smoothing / classes)
                wanted = wanted + (spread if weights is None else spread * weights)
            rows = torch.where(kept, rows, 0.0)
        total = rows * (wanted.sum(dim) + 2 * z_loss * lse * scale if z_loss else wanted.sum(dim))
        wanted = wanted * rows.unsqueeze(dim)
    if lse_grad is not None:
        total = total + lse_grad
    dx = p * total.unsqueeze(dim) - wanted
    if softcap is not None:
        dx = dx * (1 - (y / softcap).square())
    return dx.to(input.dtype), target_gradient


_NUMBERS = "int reduction, int ignore_index, float label_smoothing, float z_loss, float? softcap"
CROSS_ENTROPY = FusedOp(
    name="cross_entropy",
    kernels=tuple(
        bound(kernel, None, (("IGNORE_INDEX", -100), ("CLASSES", 1)))
        for kernel in (FORWARD, BACKWARD, BACKWARD_WITH_LSE, SMOOTH, LSE, PROBABILITIES, PROBABILITIES_BACKWARD)
    ),
    schema=f"(Tensor input, Tensor target, Tensor? weight, {_NUMBERS}, ScalarType dtype) -> (Tensor, Tensor, Tensor)",
    backward_schema=f"(Tensor? grad, Tensor? lse_grad, Tensor input, Tensor target, Tensor? weight, Tensor lse, "
    f"Tensor? denominator, {_NUMBERS}, bool[] output_mask) -> (Tensor, Tensor)",
    reference=reference,
    gradient=gradient,
    inputs=(0, 1, -1, -1, -1, -1, -1, -1, -1),
    differentiable=2,
    autocast=True,
)  # fmt: skip
