"""Modulated norms of residual + gate * input, as in the blocks of diffusion transformers, and their gradients."""

from __future__ import annotations

import torch

from tridal.library.modulated_norm.modulated_norm import (
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
    bias: Tensor | None, rows: RowReduce, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the modulated norm of the sum, the sum, and mean and 1 / sqrt(variance + eps) of each row."""
    return modulated_layer_norm(gate * input, residual, scaling, shift, weight, bias, rows, eps)


def _rms_norm(
    input: Tensor, residual: Tensor, gate: Tensor, scaling: Tensor, shift: Tensor | None, weight: Tensor | None,
    rows: RowReduce, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the modulated norm of the sum, the sum, and 1 / sqrt(mean of squares + eps) of each row."""
    return modulated_rms_norm(gate * input, residual, scaling, shift, weight, rows, eps)


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


GATED_MODULATED_LAYER_NORM = modulated_op(
    LAYER_NORM,
    (
        RowKernel(
            name="gated_modulated_layer_norm",
            module=MODULE,
            reads=("x", "residual", "gate", "scaling", "shift"),
            column_reads=("weight", "bias"),
            statistics=(
                Statistic("total", "sum", term="gated_sum"),
                Statistic("squares", "sum", term="gated_square_deviation", rebase="rebase_squares"),
            ),
            row_value="inverse_deviation",
            writes=("gated_modulated_layer_norm", "gated_sum"),
            row_writes=("mean", "inverse_deviation"),
            parameters=("eps",),
            constants=(("SUM_DTYPE", "float32"),),
            neutral_padding=True,
            live_tiles=5,
        ),
        RowKernel(
            name="gated_modulated_layer_norm_backward",
            module=MODULE,
            reads=("dy", "dsum", "x", "branch", "gate", "scaling"),
            row_reads=("mean", "inverse_deviation"),
            column_reads=("weight", "bias"),
            statistics=(Statistic("total", "sum", term="weighted"), Statistic("dot", "sum", term="layer_product")),
            writes=(
                "layer_branch_gradient", "layer_sum_gradient", "layer_gate_gradient", "layer_scale_gradient",
                "shift_gradient",
            ),
            column_writes=("layer_weight_gradient", "bias_gradient"),
            live_tiles=9,
        ),
    ),
    ("weight", "bias"),
    gated=True,
    reference=_layer_norm,
    gradient=_layer_norm_gradient,
)  # fmt: skip
GATED_MODULATED_RMS_NORM = modulated_op(
    RMS_NORM,
    (
        RowKernel(
            name="gated_modulated_rms_norm",
            module=MODULE,
            reads=("x", "residual", "gate", "scaling", "shift"),
            column_reads=("weight",),
            statistics=(Statistic("squares", "sum", term="gated_square"),),
            row_value="inverse_rms",
            writes=("gated_modulated_rms_norm", "gated_sum"),
            row_writes=("inverse_rms",),
            parameters=("eps",),
            constants=(("SUM_DTYPE", "float32"),),
            neutral_padding=True,
            live_tiles=5,
        ),
        RowKernel(
            name="gated_modulated_rms_norm_backward",
            module=MODULE,
            reads=("dy", "dsum", "x", "branch", "gate", "scaling"),
            row_reads=("inverse_rms",),
            column_reads=("weight",),
            statistics=(Statistic("dot", "sum", term="rms_product"),),
            writes=(
                "rms_branch_gradient", "rms_sum_gradient", "rms_gate_gradient", "rms_scale_gradient", "shift_gradient",
            ),
            column_writes=("rms_weight_gradient",),
            live_tiles=9,
        ),
    ),
    ("weight",),
    gated=True,
    reference=_rms_norm,
    gradient=_rms_norm_gradient,
)  # fmt: skip
