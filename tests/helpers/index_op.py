"""An op with an index per row, as a third party declares it: the negative log-likelihood of an element."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from row_tensors import CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD
from tridal import ops


def reference(x: Tensor, target: Tensor, reduce: ops.RowReduce) -> tuple[Tensor, Tensor]:
    row_max = reduce(x, "max").detach()
    row_max = row_max.masked_fill(row_max == -torch.inf, 0.0)
    log_sum_exp = reduce((x - row_max).exp(), "sum").log() + row_max
    return log_sum_exp - reduce(x.where(reduce.columns(x) == target, 0.0), "sum"), log_sum_exp


def gradient(dy: Tensor, x: Tensor, lse: Tensor, target: Tensor, reduce: ops.RowReduce) -> Tensor:
    if torch.is_grad_enabled():
        lse = reference(x, target, reduce)[1]
    return dy * ((x - lse).exp() - (reduce.columns(x) == target).to(x.dtype))


NLL = ops.Op(
    name="nll",
    arguments=(ops.per_element("input"), ops.index_per_row("target")),
    results=(ops.Result("output", "row", gradient="dy"), ops.Result("lse", "row", returned=False)),
    kernels=(
        replace(CROSS_ENTROPY, name="nll"),
        replace(CROSS_ENTROPY_BACKWARD, name="nll_backward", row_reads=("dy", "lse")),
    ),
    reference=reference,
    gradient=gradient,
    saves=("input", "lse", "target"),
)
