"""Skip norm: an RMSNorm of a sum, plus the sum times a second weight."""

from __future__ import annotations

import torch
from torch import Tensor

import tridal
from tridal import ops

KERNELS = "tridal_skipnorm.skip_norm_kernels"


def reference(
    input: Tensor, residual: Tensor | None, weight: Tensor, skip: Tensor,
    reduce: ops.RowReduce, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """h / rms(h) * weight + h * skip, where h is input + residual; and h."""
    h = input if residual is None else input + residual
    inverse_rms = torch.rsqrt(reduce.mean(h * h) + eps)
    return h * (inverse_rms * weight + skip), h, inverse_rms


def gradient(
    dy: Tensor, h: Tensor, inverse_rms: Tensor, weight: Tensor, skip: Tensor,
    reduce: ops.RowReduce, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradient of h, and the terms of those of weight and skip."""
    if torch.is_grad_enabled():  # the saved one is a constant for autograd
        inverse_rms = torch.rsqrt(reduce.mean(h * h) + eps)
    n, dn = h * inverse_rms, dy * weight
    dh = (dn - n * reduce.mean(dn * n)) * inverse_rms + dy * skip
    return dh, dy * n, dy * h


SKIP_NORM = ops.Op(
    name="skip_norm",
    arguments=(
        ops.per_element("input"), ops.per_element("residual", optional=True),
        ops.per_column("weight"), ops.per_column("skip"),
        ops.number("eps", 1e-6, range=(1e-12, 1e-2)),
    ),
    results=(
        ops.Result("output", "element", gradient="dy"),
        ops.Result("total", "element", needs="residual", gradient="dtotal"),
        ops.Result("inverse_rms", "row", returned=False),
    ),
    kernels=(
        ops.RowKernel(
            name="skip_norm", module=KERNELS, reads=("x", "residual"),
            column_reads=("weight", "skip"), parameters=("eps",),
            statistics=(ops.Statistic("squares", "sum", term="square"),),
            row_value="inverse_rms", writes=("skip_norm", "total"),
            row_writes=("inverse_rms",), neutral_padding=True,
        ),
        ops.RowKernel(
            name="skip_norm_backward", module=KERNELS, reads=("dy", "h"),
            added="dtotal", row_reads=("inverse_rms",),
            column_reads=("weight", "skip"),
            statistics=(ops.Statistic("dot", "sum", term="product"),),
            writes=("gradient",), live_tiles=4, neutral_padding=True,
            column_writes=("weight_gradient", "skip_gradient"),
        ),
    ),
    reference=reference,
    gradient=gradient,
    saves=(("h", "total", "input"), "inverse_rms", "weight", "skip"),
    gradients=(("input", "residual"), ("weight",), ("skip",)),
)  # fmt: skip

skip_norm = tridal.row_function(SKIP_NORM)
