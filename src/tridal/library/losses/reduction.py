"""The reduction of the losses of rows to one number, with a kernel on one row of all losses."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tridal.library.losses.cross_entropy import MEAN, NONE, REDUCE, REDUCE_ALL, reduce_rows
from tridal.pytorch.device_context import DeviceContext
from tridal.pytorch.path.launch_source import Launch
from tridal.pytorch.path.launches import prepare_kernel

Tensor = torch.Tensor
Reduce = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
_EXACT = 2**24
"""Integers up to this number are exact in float32."""


def prepare_reduction(
    context: DeviceContext, rows: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int,
    dtype: torch.dtype, classes: int, needs_denominator: bool = True,
) -> Reduce:  # fmt: skip
    """Returns reduce(rows, target, weight), for losses of rows like the meta tensor `rows`, which is contiguous.

    It returns the loss in `dtype`, and for the mean over target indices also the sum of their weights, which may be
    None if it is not needed.
    """

    def by_torch(rows: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
        loss, denominator = reduce_rows(rows, target, weight, reduction, ignore_index)
        return loss.to(dtype), denominator

    if reduction == NONE or not target.numel() or (rows.dtype is torch.float64 and dtype.itemsize == 2):
        return by_torch
    row = rows.view(-1)
    if reduction != MEAN or target.is_floating_point():
        kernel = REDUCE_ALL.writing("mean_of_losses" if reduction == MEAN else "loss_sum")
        launch = prepare_kernel(context, Launch(kernel, 0, (dtype,)), [row])
        if launch is None:
            return by_torch
        return lambda rows, target, weight: (launch.run(rows.view(-1))[0], None)
    if rows.dtype is torch.float32 and max(classes, abs(ignore_index)) > _EXACT:
        return by_torch
    kernel = REDUCE.bind(IGNORE_INDEX=ignore_index, **({"weight": None} if weight is None else {}))
    columns = [target.reshape(-1)] if weight is None else [target.reshape(-1), row.to(weight.dtype)]
    kernel = kernel if needs_denominator else kernel.writing("weighted_mean")
    dtypes = (dtype, rows.dtype)[: len(kernel.row_writes)]
    mean = prepare_kernel(context, Launch(kernel, 0, dtypes), [row, *columns])
    if mean is None:
        return by_torch
    flat = rows.dim() == 1 and target.dim() == 1

    def weighted_mean(rows: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if not flat:
            rows, target = rows.view(-1), target.reshape(-1)
        given = [rows, target]
        if weight is not None:
            given.append(weight.take(target.clamp(0, classes - 1)))
        loss, *total = mean.run(*given)
        return loss, total[0] if total else None

    return weighted_mean
