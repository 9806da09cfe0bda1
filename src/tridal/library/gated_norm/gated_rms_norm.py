"""RMSNorm with a gate: its kernels, its maths in torch's ops, and its gradient.

The result is n * weight * activation(gate), where n is the normalized input. With `gate_first`, n is the normalized
input * activation(gate), and the result n * weight. So the two differ only in the mean of squares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tridal.ops import Named, Op, Result, RowKernel, RowReduce, Statistic, number, per_column, per_element, sum_dtype

Tensor = torch.Tensor
MODULE = "tridal.library.gated_norm.kernels.gated_rms_norm"
ACTIVATIONS = ("silu", "sigmoid")


def _activation(gate: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Returns activation(gate) and its derivative."""
    large, small = torch.sigmoid(gate), torch.sigmoid(-gate)
    return (gate * large, large + gate * large * small) if activation == "silu" else (large, large * small)


def reference(
    input: Tensor, gate: Tensor, weight: Tensor | None, rows: RowReduce, eps: float, activation: str, gate_first: bool
) -> tuple[Tensor, Tensor]:
    """Returns the gated and normalized input, and 1 / sqrt(mean of squares + eps) of each row."""
    activated, _ = _activation(gate, activation)
    normalized = input * activated if gate_first else input
    inverse_rms = torch.rsqrt(rows.mean(normalized * normalized) + eps)
    y = input * inverse_rms
    return (y if weight is None else y * weight) * activated, inverse_rms


def gradient(
    dy: Tensor, x: Tensor, gate: Tensor, inverse_rms: Tensor, weight: Tensor | None, rows: RowReduce, eps: float,
    activation: str, gate_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of the input and of the gate, and the term of the weight's gradient."""
    activated, slope = _activation(gate, activation)
    if torch.is_grad_enabled():  # the saved statistic is a constant for autograd
        normalized = x * activated if gate_first else x
        inverse_rms = torch.rsqrt(rows.mean(normalized * normalized) + eps)
    term, dn = dy * x * inverse_rms * activated, dy if weight is None else dy * weight
    mean = rows.mean(dn * x * inverse_rms * activated)
    projection = x * inverse_rms * mean
    if gate_first:
        dn = dn - projection * activated
        return dn * activated * inverse_rms, dn * x * inverse_rms * slope, term
    return (dn * activated - projection) * inverse_rms, dn * x * inverse_rms * slope, term


def _constants(named: Named) -> Mapping[str, Any]:
    return {"ACTIVATION": named["activation"], "GATE_FIRST": named["gate_first"]}


def _unsupported(named: Named, dtypes: Sequence[torch.dtype]) -> str | None:
    mixed = sum_dtype(named) is torch.float64 and named["gate"].dtype is not torch.float64
    return "kernels of norms compute float64 tensors with float64 tensors only" if mixed else None


_CONSTANTS = (("ACTIVATION", "silu"), ("GATE_FIRST", False))
_NUMBERS = (
    number("eps", range=(1e-12, 1e-2)), number("activation", "silu", range=ACTIVATIONS), number("gate_first", False),
)  # fmt: skip
GATED_RMS_NORM = Op(
    name="gated_rms_norm",
    kernels=(
        RowKernel(
            name="gated_rms_norm",
            module=MODULE,
            reads=("x", "gate"),
            column_reads=("weight",),
            statistics=(Statistic("squares", "sum", term="square"),),
            row_value="inverse_rms",
            writes=("gated_rms_norm",),
            row_writes=("inverse_rms",),
            parameters=("eps",),
            constants=_CONSTANTS,
            neutral_padding=True,
            live_tiles=3,
        ),
        RowKernel(
            name="gated_rms_norm_backward",
            module=MODULE,
            reads=("dy", "x", "gate"),
            row_reads=("inverse_rms",),
            column_reads=("weight",),
            statistics=(Statistic("dot", "sum", term="product"),),
            writes=("x_gradient", "gate_gradient"),
            column_writes=("weight_gradient",),
            constants=_CONSTANTS,
            neutral_padding=True,
            live_tiles=6,
        ),
    ),
    arguments=(
        per_element("input"), per_element("gate"), per_column("weight", optional=True), number("dims", type="int"),
        *_NUMBERS,
    ),
    results=(
        Result("output", "element", lambda named: named["input"].dtype, gradient="dy"),
        Result("inverse_rms", "row", returned=False),
    ),
    reference=reference,
    gradient=gradient,
    saves=(("x", "input"), "gate", "inverse_rms", "weight"),
    gradients=(("input",), ("gate",), ("weight",)),
    gradient_results=(
        Result("input", "element", lambda named: named["x"].dtype),
        Result("gate", "element", lambda named: named["gate"].dtype), Result("weight", "column"),
    ),
    gradient_numbers=tuple(replace(n, default=None) for n in _NUMBERS),  # no default before `output_mask`
    constants=_constants,
    unsupported=_unsupported,
    benchmark="tridal.library.gated_norm.benchmark:GATED_RMS_NORM",
)  # fmt: skip
