"""Modulated norms of residual + gate * input, as in the blocks of diffusion transformers, and their gradients."""

from __future__ import annotations

from dataclasses import replace

import torch

from tridal.library.modulated_norm.modulated_norm import (
    MODULATED_LAYER_NORM,
    MODULATED_RMS_NORM,
    cast,
    layer_norm_gradient,
    modulated_layer_norm,
    modulated_op,
    modulated_rms_norm,
    rms_norm_gradient,
)
from tridal.library.norms.norms import LAYER_NORM, RMS_NORM
from tridal.ops import RowKernel, RowReduce, Statistic

Tensor = torch.Tensor
MODULE = "tridal.library.modulated_norm.kernels.gated_residual"


def _layer_norm(
    input: Tensor, residual: Tensor, gate: Tensor, scaling: Tensor, shift: Tensor | None, weight: Tensor | None,
    bias: Tensor | None, rows: RowReduce, eps: float, casting: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the modulated norm of the sum, the sum, and mean and 1 / sqrt(variance + eps) of each row."""
    branch = cast(gate * input, rows, casting)
    return modulated_layer_norm(branch, residual, scaling, shift, weight, bias, rows, eps, casting)


def _rms_norm(
    input: Tensor, residual: Tensor, gate: Tensor, scaling: Tensor, shift: Tensor | None, weight: Tensor | None,
    rows: RowReduce, eps: float, casting: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the modulated norm of the sum, the sum, and 1 / sqrt(mean of squares + eps) of each row."""
    branch = cast(gate * input, rows, casting)
    return modulated_rms_norm(branch, residual, scaling, shift, weight, rows, eps, casting)


def _layer_norm_gradient(
    dy: Tensor, dsum: Tensor, x: Tensor, branch: Tensor, gate: Tensor, scaling: Tensor, mean: Tensor,
    inverse_deviation: Tensor, weight: Tensor | None, bias: Tensor | None, rows: RowReduce, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the gradients of input, residual, gate, scale and shift, and the terms of those of weight and bias."""
    of_norm, *others = layer_norm_gradient(dy, x, scaling, mean, inverse_deviation, weight, bias, rows, eps)
    total = of_norm + dsum
    return gate * total, total, branch * total, *others


def _rms_norm_gradient(
    dy: Tensor, dsum: Tensor, x: Tensor, branch: Tensor, gate: Tensor, scaling: Tensor, inverse_rms: Tensor,
    weight: Tensor | None, rows: RowReduce, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the gradients of input, residual, gate, scale and shift, and the term of that of the weight."""
    of_norm, *others = rms_norm_gradient(dy, x, scaling, inverse_rms, weight, rows, eps)
    total = of_norm + dsum
    return gate * total, total, branch * total, *others


def _forward(kernel: RowKernel, *statistics: Statistic) -> RowKernel:
    """Returns the forward of a norm for residual + gate * x."""
    name = f"gated_{kernel.name}"
    return replace(
        kernel, name=name, module=MODULE, reads=("x", "residual", "gate", "scaling", "shift"), statistics=statistics,
        writes=(name, "gated_sum"), live_tiles=5,
    )  # fmt: skip


def _backward(kernel: RowKernel, norm: str) -> RowKernel:
    """Returns the gradient of a norm for residual + gate * x. `norm` begins the names of its functions."""
    return replace(
        kernel, name=f"gated_{kernel.name}", module=MODULE, reads=("dy", "dsum", "x", "branch", "gate", "scaling"),
        added=None, neutral_padding=False, live_tiles=9,
        writes=(
            f"{norm}_branch_gradient", f"{norm}_sum_gradient", f"{norm}_gate_gradient", f"{norm}_scale_gradient",
            "shift_gradient",
        ),
    )  # fmt: skip


GATED_MODULATED_LAYER_NORM = modulated_op(
    LAYER_NORM,
    (
        _forward(
            MODULATED_LAYER_NORM.kernels[0],
            Statistic("total", "sum", term="gated_sum"),
            Statistic("squares", "sum", term="gated_square_deviation", rebase="rebase_squares"),
        ),
        _backward(MODULATED_LAYER_NORM.kernels[1], "layer"),
    ),
    ("weight", "bias"),
    gated=True,
    reference=_layer_norm,
    gradient=_layer_norm_gradient,
)
GATED_MODULATED_RMS_NORM = modulated_op(
    RMS_NORM,
    (
        _forward(MODULATED_RMS_NORM.kernels[0], Statistic("squares", "sum", term="gated_square")),
        _backward(MODULATED_RMS_NORM.kernels[1], "rms"),
    ),
    ("weight",),
    gated=True,
    reference=_rms_norm,
    gradient=_rms_norm_gradient,
)
