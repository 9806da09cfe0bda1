"""RMSNorm: its kernels, its maths in torch's ops, and its gradient."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from tridal.library.norms.residual import Tensor, add_residual, total_dtype, unsupported
from tridal.ops import Op, Result, RowKernel, RowReduce, Statistic, number, per_column, per_element

MODULE = "tridal.library.norms.kernels.rms_norm"


def _torch_promotes() -> bool:
    """Whether torch's rms_norm of a bfloat16 input with a float32 weight gives float32. Versions of torch differ."""
    input, weight = (torch.ones(1, dtype=dtype, device="cpu") for dtype in (torch.bfloat16, torch.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about mixed dtypes
        return torch.rms_norm(input, (1,), weight).dtype is torch.float32


_TORCH_PROMOTES = _torch_promotes()


def _dtype(named: Mapping[str, Any]) -> torch.dtype:
    """The dtype of the normalized sum."""
    dtype, weight, casting = total_dtype(named), named["weight"], named["casting"]
    promotes = casting == "llama" or (casting == "" and _TORCH_PROMOTES)
    return torch.promote_types(dtype, weight.dtype) if promotes and weight is not None else dtype


def _constants(named: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"SUM_DTYPE": str(total_dtype(named)).removeprefix("torch."), "CASTING": named["casting"]}


def reference(
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


def gradient(
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


RMS_NORM = Op(
    name="rms_norm",
    kernels=(
        RowKernel(
            name="rms_norm",
            module=MODULE,
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
            module=MODULE,
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
        number("dims", type="int"), number("eps", range=(1e-12, 1e-2)),
        number("weight_offset", type="float", neutral=0.0, range=(-1.0, 1.0)),
        number("casting", type="str", range=("", "llama", "gemma")),
    ),
    results=(
        Result("output", "element", _dtype, gradient="dy"),
        Result("residual_sum", "element", total_dtype, needs="residual", gradient="dsum"),
        Result("inverse_rms", "row", returned=False),
    ),
    reference=reference,
    gradient=gradient,
    saves=(("x", "residual_sum", "input"), "inverse_rms", "weight"),
    gradients=(("input", "residual"), ("weight",)),
    constants=_constants,
    unsupported=unsupported,
    aten="tridal.library.norms.override:RMS_NORM_KERNELS",
    benchmark="tridal.library.norms.benchmark:RMS_NORM",
)  # fmt: skip
