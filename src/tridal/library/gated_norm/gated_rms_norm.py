"""RMSNorm with a gate: its kernels, its math in torch's ops, and its gradient.

The result is n * weight * activation(gate), where n is the normalized input. With `gate_first`, n is the normalized
input * activation(gate), and the result n * weight. The two differ in the mean of squares, and in what the casting
"llama" rounds: n and n * weight, as `rms_norm` does, before the activation multiplies or after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from tridal.library.norms.norms import unsupported
from tridal.ops import Named, Op, Result, RowKernel, RowReduce, Statistic, number, per_column, per_element

Tensor = torch.Tensor
MODULE = "tridal.library.gated_norm.kernels.gated_rms_norm"
ACTIVATIONS = ("silu", "sigmoid")
CASTINGS = (None, "llama")


def _activation(gate: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """activation(gate), and its derivative."""
    large, small = torch.sigmoid(gate), torch.sigmoid(-gate)
    return (gate * large, large + gate * large * small) if activation == "silu" else (large, large * small)


def reference(
    input: Tensor, gate: Tensor, weight: Tensor | None, rows: RowReduce, eps: float, activation: str, gate_first: bool,
    casting: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns the gated and normalized input, and 1 / sqrt(mean of squares + eps) of each row."""
    activated, _ = _activation(gate, activation)
    normalized = input * activated if gate_first else input
    inverse_rms = torch.rsqrt(rows.mean(normalized * normalized) + eps)
    y = (normalized if casting else input) * inverse_rms
    if casting:
        y = rows.rounded(y, rows.dtypes["input"])
    y = y if weight is None else y * weight
    if casting and not gate_first:
        y = rows.rounded(y, _weighted_dtype(rows.dtypes))
    return y if casting and gate_first else y * activated, inverse_rms


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


def _weighted_dtype(dtypes: Mapping[str, torch.dtype]) -> torch.dtype:
    """The promoted dtype of input and weight, from the dtypes of the tensors by name."""
    return torch.promote_types(dtypes["input"], dtypes.get("weight", dtypes["input"]))


def _dtypes(named: Named) -> Mapping[str, torch.dtype]:
    return {name: named[name].dtype for name in ("input", "weight") if named[name] is not None}


def _dtype(named: Named) -> torch.dtype:
    promotes = named["casting"] == "llama" and named["gate_first"]
    return _weighted_dtype(_dtypes(named)) if promotes else named["input"].dtype


def _constants(named: Named) -> Mapping[str, Any]:
    found = {"ACTIVATION": named["activation"], "GATE_FIRST": named["gate_first"]}
    if "casting" not in named:
        return found
    dtypes = {"INPUT_DTYPE": named["input"].dtype, "WEIGHTED_DTYPE": _weighted_dtype(_dtypes(named))}
    return {**found, "CASTING": named["casting"], **{k: str(d).removeprefix("torch.") for k, d in dtypes.items()}}


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
            constants=(
                *_CONSTANTS, ("CASTING", ""), ("INPUT_DTYPE", "float32"), ("WEIGHTED_DTYPE", "float32"),
            ),
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
        *_NUMBERS, number("casting", "", range=("", "llama")),
    ),
    results=(
        Result("output", "element", _dtype, gradient="dy"),
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
    unsupported=unsupported,
    benchmark="tridal.library.gated_norm.benchmark:GATED_RMS_NORM",
)  # fmt: skip
