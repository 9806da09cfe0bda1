"""RMSNorm and LayerNorm: their kernels, their math in torch's ops, and their gradients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tridal.ops import Op, Result, RowKernel, RowReduce, Statistic, number, per_column, per_element, sum_dtype

Tensor = torch.Tensor
_OTHER_ELEMENTS = ("gate", "scaling", "shift")
"""The names of further tensors with a number per element that norms multiply or add."""


def total_dtype(named: Mapping[str, Any]) -> torch.dtype:
    """The dtype of input + residual, from the arguments of a call by name."""
    input, residual = named["input"], named["residual"]
    return input.dtype if residual is None else torch.promote_types(input.dtype, residual.dtype)


def add_residual(input: Tensor, residual: Tensor | None, rows: RowReduce) -> tuple[Tensor, torch.dtype]:
    """input + residual, rounded to the promoted dtype, and this dtype. Both are in the dtype of sums."""
    dtype = rows.dtypes["input"]
    if residual is None:
        return input, dtype
    dtype = torch.promote_types(dtype, rows.dtypes["residual"])
    return rows.rounded(input + residual, dtype, "residual_sum"), dtype


def unsupported(named: Mapping[str, Any], dtypes: Sequence[torch.dtype]) -> str | None:
    """Why no kernel computes a norm or its gradient: float64 is mixed with narrower dtypes.

    If a tensor is float64, all tensors with a number per element and the first result have to be. An input and its
    residual count as their sum.
    """
    x = total_dtype(named) if "residual" in named else named["input" if "input" in named else "x"].dtype
    elements = (x, *(named[name].dtype for name in _OTHER_ELEMENTS if named.get(name) is not None), dtypes[0])
    mixed = sum_dtype(named) is torch.float64 and any(dtype is not torch.float64 for dtype in elements)
    return "kernels of norms compute float64 tensors with float64 tensors only" if mixed else None


def _torch_promotes() -> bool:
    """Whether torch's rms_norm of a bfloat16 input with a float32 weight gives float32. Versions of torch differ."""
    input, weight = (torch.ones(1, dtype=dtype, device="cpu") for dtype in (torch.bfloat16, torch.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about mixed dtypes
        return torch.rms_norm(input, (1,), weight).dtype is torch.float32


_TORCH_PROMOTES = _torch_promotes()


def _dtype(named: Mapping[str, Any]) -> torch.dtype:
    dtype, weight, casting = total_dtype(named), named["weight"], named["casting"]
    promotes = casting == "llama" or (casting == "" and _TORCH_PROMOTES)
    return torch.promote_types(dtype, weight.dtype) if promotes and weight is not None else dtype


def _constants(named: Mapping[str, Any]) -> Mapping[str, Any]:
    casting = {"CASTING": named["casting"]} if "casting" in named else {}
    return {"SUM_DTYPE": str(total_dtype(named)).removeprefix("torch."), **casting}


def _rms_norm(
    input: Tensor, residual: Tensor | None, weight: Tensor | None, rows: RowReduce, eps: float, weight_offset: float,
    casting: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the normalized sum, the sum, and 1 / sqrt(mean of squares + eps) of each row."""
    total, dtype = add_residual(input, residual, rows)
    inverse_rms = torch.rsqrt(rows.mean(total * total) + eps)
    y = total * inverse_rms
    if casting == "llama":
        y = rows.rounded(y, dtype)
    if weight is not None:
        y = y * (weight + weight_offset)
    return y, total, inverse_rms


def _rms_norm_gradient(
    dy: Tensor, x: Tensor, inverse_rms: Tensor, weight: Tensor | None, rows: RowReduce, eps: float,
    weight_offset: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns the gradient of the sum x, and the term of the weight's gradient.

    The gradient does not depend on `casting`: it passes through the rounding.
    """
    if torch.is_grad_enabled():  # the saved statistic is a constant for autograd
        inverse_rms = torch.rsqrt(rows.mean(x * x) + eps)
    n, dn = x * inverse_rms, dy if weight is None else dy * (weight + weight_offset)
    return (dn - n * rows.mean(dn * n)) * inverse_rms, dy * n


_EPS = number("eps", range=(1e-12, 1e-2))
_WEIGHT_OFFSET = number("weight_offset", type="float", neutral=0.0, range=(-1.0, 1.0))
RMS_NORM = Op(
    name="rms_norm",
    kernels=(
        RowKernel(
            name="rms_norm",
            module="tridal.library.norms.kernels.rms_norm",
            reads=("x", "residual"),
            column_reads=("weight",),
            statistics=(Statistic("squares", "sum", term="square"),),
            row_value="inverse_rms",
            writes=("rms_norm", "residual_sum"),
            row_writes=("inverse_rms",),
            parameters=("eps", "weight_offset"),
            constants=(("SUM_DTYPE", "float32"), ("CASTING", "")),
            neutral_padding=True,
            live_tiles=2,
        ),
        RowKernel(
            name="rms_norm_backward",
            module="tridal.library.norms.kernels.rms_norm",
            reads=("dy", "x"),
            added="dsum",
            row_reads=("inverse_rms",),
            column_reads=("weight",),
            statistics=(Statistic("dot", "sum", term="weighted_product"),),
            writes=("rms_norm_gradient",),
            column_writes=("weight_gradient",),
            parameters=("weight_offset",),
            neutral_padding=True,
            live_tiles=4,
        ),
    ),
    arguments=(
        per_element("input"), per_element("residual", optional=True), per_column("weight", optional=True),
        number("dims", type="int"), _EPS, _WEIGHT_OFFSET,
        number("casting", type="str", range=("", "llama", "gemma")),
    ),
    results=(
        Result("output", "element", _dtype, gradient="dy"),
        Result("residual_sum", "element", total_dtype, needs="residual", gradient="dsum"),
        Result("inverse_rms", "row", returned=False),
    ),
    reference=_rms_norm,
    gradient=_rms_norm_gradient,
    saves=(("x", "residual_sum", "input"), "inverse_rms", "weight"),
    gradients=(("input", "residual"), ("weight",)),
    constants=_constants,
    unsupported=unsupported,
    aten="tridal.library.norms.override:RMS_NORM_KERNELS",
    benchmark="tridal.library.norms.benchmark:RMS_NORM",
)  # fmt: skip


def _layer_norm(
    input: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, rows: RowReduce, eps: float,
    weight_offset: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the normalized sum, the sum, and mean and 1 / sqrt(variance + eps) of each row."""
    total, _ = add_residual(input, residual, rows)
    mean = rows.mean(total)
    centered = total - mean
    inverse_deviation = torch.rsqrt(rows.mean(centered * centered) + eps)
    y = centered * inverse_deviation
    y = y if weight is None else y * (weight + weight_offset)
    return y if bias is None else y + bias, total, mean, inverse_deviation


def _layer_norm_gradient(
    dy: Tensor, x: Tensor, mean: Tensor, inverse_deviation: Tensor, weight: Tensor | None, rows: RowReduce, eps: float,
    weight_offset: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the gradient of the sum x, and the terms of the gradients of weight and bias."""
    if torch.is_grad_enabled():  # saved statistics are constants for autograd
        mean = rows.mean(x)
        inverse_deviation = torch.rsqrt(rows.mean((x - mean) * (x - mean)) + eps)
    n, dn = (x - mean) * inverse_deviation, dy if weight is None else dy * (weight + weight_offset)
    return (dn - rows.mean(dn) - n * rows.mean(dn * n)) * inverse_deviation, dy * n, dy


LAYER_NORM = Op(
    name="layer_norm",
    kernels=(
        RowKernel(
            name="layer_norm",
            module="tridal.library.norms.kernels.layer_norm",
            reads=("x", "residual"),
            column_reads=("weight", "bias"),
            statistics=(
                Statistic("total", "sum", term="residual_sum"),
                Statistic("squares", "sum", term="square_deviation", rebase="rebase_squares"),
            ),
            row_value="inverse_deviation",
            writes=("layer_norm", "residual_sum"),
            row_writes=("mean", "inverse_deviation"),
            parameters=("eps", "weight_offset"),
            constants=(("SUM_DTYPE", "float32"),),
            neutral_padding=True,
            live_tiles=2,
        ),
        RowKernel(
            name="layer_norm_backward",
            module="tridal.library.norms.kernels.layer_norm",
            reads=("dy", "x"),
            added="dsum",
            row_reads=("mean", "inverse_deviation"),
            column_reads=("weight",),
            statistics=(Statistic("total", "sum", term="weighted"), Statistic("dot", "sum", term="weighted_product")),
            writes=("layer_norm_gradient",),
            column_writes=("weight_gradient", "bias_gradient"),
            parameters=("weight_offset",),
            neutral_padding=True,
            live_tiles=4,
        ),
    ),
    arguments=(
        per_element("input"), per_element("residual", optional=True), per_column("weight", optional=True),
        per_column("bias", optional=True), number("dims", type="int"), _EPS, replace(_WEIGHT_OFFSET, default=0.0),
    ),
    results=(
        Result("output", "element", total_dtype, gradient="dy"),
        Result("residual_sum", "element", total_dtype, needs="residual", gradient="dsum"),
        Result("mean", "row", returned=False), Result("inverse_deviation", "row", returned=False),
    ),
    reference=_layer_norm,
    gradient=_layer_norm_gradient,
    saves=(("x", "residual_sum", "input"), "mean", "inverse_deviation", "weight"),
    gradients=(("input", "residual"), ("weight",), ("bias",)),
    gradient_numbers=(_EPS, _WEIGHT_OFFSET),  # no default before `output_mask`
    constants=_constants,
    unsupported=unsupported,
    aten="tridal.library.norms.override:LAYER_NORM_KERNELS",
    benchmark="tridal.library.norms.benchmark:LAYER_NORM",
)  # fmt: skip
