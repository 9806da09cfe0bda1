"""LayerNorm: its kernels, its maths in torch's ops, and its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tridal.library.norms.residual import Tensor, add_residual, total_dtype, unsupported
from tridal.ops import Op, Result, RowKernel, RowReduce, Statistic, number, per_column, per_element

MODULE = "tridal.library.norms.kernels.layer_norm"


def reference(
    input: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, rows: RowReduce, eps: float
) -> tuple[Tensor, ...]:
    """Returns the normalized sum, the sum, and mean and 1 / sqrt(variance + eps) of each row."""
    total, _ = add_residual(input, residual, rows)
    mean = rows.mean(total)
    centered = total - mean
    inverse_deviation = torch.rsqrt(rows.mean(centered * centered) + eps)
    y = centered * inverse_deviation
    y = y if weight is None else y * weight
    return y if bias is None else y + bias, total, mean, inverse_deviation


def gradient(
    dy: Tensor, x: Tensor, mean: Tensor, inverse_deviation: Tensor, weight: Tensor | None, rows: RowReduce, eps: float
) -> tuple[Tensor, ...]:
    """Returns the gradient of the sum x, and the terms of the gradients of weight and bias."""
    if torch.is_grad_enabled():  # saved statistics are constants for autograd
        mean = rows.mean(x)
        inverse_deviation = torch.rsqrt(rows.mean((x - mean) * (x - mean)) + eps)
    n, dn = (x - mean) * inverse_deviation, dy if weight is None else dy * weight
    return (dn - rows.mean(dn) - n * rows.mean(dn * n)) * inverse_deviation, dy * n, dy


def _constants(named: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"SUM_DTYPE": str(total_dtype(named)).removeprefix("torch.")}


LAYER_NORM = Op(
    name="layer_norm",
    kernels=(
        RowKernel(
            name="layer_norm",
            module=MODULE,
            reads=("x", "residual"),
            column_reads=("weight", "bias"),
            statistics=(
                Statistic("total", "sum", term="residual_sum"),
                Statistic("squares", "sum", term="square_deviation", rebase="rebase_squares"),
            ),
            row_value="inverse_deviation",
            writes=("layer_norm", "residual_sum"),
            row_writes=("mean", "inverse_deviation"),
            parameters=("eps",),
            constants=(("SUM_DTYPE", "float32"),),
            neutral_padding=True,
            live_tiles=2,
        ),
        RowKernel(
            name="layer_norm_backward",
            module=MODULE,
            reads=("dy", "x"),
            added="dsum",
            row_reads=("mean", "inverse_deviation"),
            column_reads=("weight",),
            statistics=(Statistic("total", "sum", term="weighted"), Statistic("dot", "sum", term="weighted_product")),
            writes=("layer_norm_gradient",),
            column_writes=("weight_gradient", "bias_gradient"),
            neutral_padding=True,
            live_tiles=4,
        ),
    ),
    arguments=(
        per_element("input"), per_element("residual", optional=True), per_column("weight", optional=True),
        per_column("bias", optional=True), number("dims", type="int"), number("eps", range=(1e-12, 1e-2)),
    ),
    results=(
        Result("output", "element", total_dtype, gradient="dy"),
        Result("residual_sum", "element", total_dtype, needs="residual", gradient="dsum"),
        Result("mean", "row", returned=False), Result("inverse_deviation", "row", returned=False),
    ),
    reference=reference,
    gradient=gradient,
    saves=(("x", "residual_sum", "input"), "mean", "inverse_deviation", "weight"),
    gradients=(("input", "residual"), ("weight",), ("bias",)),
    constants=_constants,
    unsupported=unsupported,
    aten="tridal.library.norms.override:LAYER_NORM_KERNELS",
    benchmark="tridal.library.norms.benchmark:LAYER_NORM",
)  # fmt: skip
