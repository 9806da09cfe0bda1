"""Modulated norms, norm(input) * (1 + scale) + shift: their kernels, their math in torch's ops, and their gradients.

The scale, which is called `scaling` here, and the shift have a number per element, or a number per column for each
block of consecutive rows, as those of a batch have. They have the same shape. Others are expanded with strides of zero
before the op, so torch sums their gradients. The casting "llama" rounds each step as a 16-bit model does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tridal.library.norms.norms import LAYER_NORM, RMS_NORM, total_dtype, unsupported
from tridal.ops import Named, Op, Result, RowKernel, RowReduce, Statistic, number, per_column, per_element

Tensor = torch.Tensor
MODULE = "tridal.library.modulated_norm.kernels.modulated_norm"
_CONSTANTS = (("SUM_DTYPE", "float32"), ("FACTOR_DTYPE", "float32"), ("CASTING", ""))


def cast(x: Tensor, rows: RowReduce, casting: str) -> Tensor:
    """Returns x rounded to the promoted dtype of input and residual if the casting is "llama"."""
    input = rows.dtypes["input"]
    return rows.rounded(x, torch.promote_types(input, rows.dtypes.get("residual", input))) if casting else x


def _modulated(y: Tensor, scaling: Tensor, shift: Tensor | None, rows: RowReduce, casting: str) -> Tensor:
    factor = rows.rounded(1 + scaling, rows.dtypes["scaling"]) if casting else 1 + scaling
    y = cast(cast(y, rows, casting) * factor, rows, casting)
    return y if shift is None else y + shift


def modulated_layer_norm(
    input: Tensor, residual: Tensor | None, scaling: Tensor, shift: Tensor | None, weight: Tensor | None,
    bias: Tensor | None, rows: RowReduce, eps: float, casting: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the modulated norm of the sum, the sum, and mean and 1 / sqrt(variance + eps) of each row."""
    y, *others = LAYER_NORM.reference(input, residual, weight, bias, rows, eps, 0.0)
    return _modulated(y, scaling, shift, rows, casting), *others


def modulated_rms_norm(
    input: Tensor, residual: Tensor | None, scaling: Tensor, shift: Tensor | None, weight: Tensor | None,
    rows: RowReduce, eps: float, casting: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the modulated norm of the sum, the sum, and 1 / sqrt(mean of squares + eps) of each row."""
    y, *others = RMS_NORM.reference(input, residual, weight, rows, eps, 0.0, casting)
    return _modulated(y, scaling, shift, rows, casting), *others


def layer_norm_gradient(
    dy: Tensor, x: Tensor, scaling: Tensor, mean: Tensor, inverse_deviation: Tensor, weight: Tensor | None,
    bias: Tensor | None, rows: RowReduce, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the gradients of input, scale and shift, and the terms of the gradients of weight and bias."""
    assert LAYER_NORM.gradient is not None
    if torch.is_grad_enabled():  # saved statistics are constants for autograd
        mean = rows.mean(x)
        inverse_deviation = torch.rsqrt(rows.mean((x - mean) * (x - mean)) + eps)
    dn = dy * (1 + scaling)
    found, of_weight, of_bias = LAYER_NORM.gradient(dn, x, mean, inverse_deviation, weight, rows, eps, 0.0)
    y = (x - mean) * inverse_deviation
    y = y if weight is None else y * weight
    return found, dy * (y if bias is None else y + bias), dy, of_weight, of_bias


def rms_norm_gradient(
    dy: Tensor, x: Tensor, scaling: Tensor, inverse_rms: Tensor, weight: Tensor | None, rows: RowReduce, eps: float
) -> tuple[Tensor, ...]:
    """Returns the gradients of input, scale and shift, and the term of the weight's gradient."""
    assert RMS_NORM.gradient is not None
    if torch.is_grad_enabled():  # the saved statistic is a constant for autograd
        inverse_rms = torch.rsqrt(rows.mean(x * x) + eps)
    found, of_weight = RMS_NORM.gradient(dy * (1 + scaling), x, inverse_rms, weight, rows, eps, 0.0)
    y = x * inverse_rms
    return found, dy * (y if weight is None else y * weight), dy, of_weight


def _constants(named: Named) -> Mapping[str, Any]:
    if "casting" not in named:
        return {}
    dtypes = {"SUM_DTYPE": total_dtype(named), "FACTOR_DTYPE": named["scaling"].dtype}
    return {"CASTING": named["casting"], **{k: str(dtype).removeprefix("torch.") for k, dtype in dtypes.items()}}


def dtype_of(name: str) -> Callable[[Named], torch.dtype]:
    """Returns a function that returns the dtype of an argument."""
    return lambda named: named[name].dtype


def modulated_op(
    norm: Op, kernels: tuple[RowKernel, RowKernel], columns: tuple[str, ...], gated: bool = False, **functions: Any
) -> Op:
    """Returns the op of a modulated norm of input + residual, or of residual + gate * input if it is gated.

    `columns` are the names of the tensors of the norm with a number per column. Without a gate, the residual is
    optional, and its gradient is that of the input.
    """
    name, saved = kernels[0].name, [result.name for result in norm.results if not result.returned]
    of_sum = () if gated else (("input", "residual"), ("scaling",), ("shift",), *((column,) for column in columns))
    of_input = Result("input", "element", dtype_of("branch" if gated else "x"))
    of_gate = (
        Result("residual", "element", dtype_of("x")),
        Result("gate", "element", dtype_of("gate"), per_block="gate"),
    )
    return Op(
        name=name,
        kernels=kernels,
        arguments=(
            per_element("input"), per_element("residual", optional=not gated),
            *[per_element("gate", or_per_block=True)] * gated, per_element("scaling", or_per_block=True),
            per_element("shift", optional=True, or_per_block=True),
            *(per_column(column, optional=True) for column in columns), number("dims", type="int"),
            number("eps", range=(1e-12, 1e-2)), number("casting", "", range=("", "llama")),
        ),
        results=(
            Result("output", "element", total_dtype, gradient="dy"),
            Result("residual_sum", "element", total_dtype, needs=None if gated else "residual", gradient="dsum"),
            *(Result(statistic, "row", returned=False) for statistic in saved),
        ),
        saves=(
            *((("x", "residual_sum"), ("branch", "input"), "gate") if gated else (("x", "residual_sum", "input"),)),
            "scaling", *saved, *columns,
        ),
        gradients=of_sum,
        gradient_results=(
            of_input, *(of_gate if gated else ()),
            Result("scaling", "element", dtype_of("scaling"), per_block="scaling"),
            Result("shift", "element", dtype_of("x"), per_block="scaling"),
            *(Result(column, "column") for column in columns),
        ),
        constants=_constants,
        unsupported=unsupported,
        benchmark=f"tridal.library.modulated_norm.benchmark:{name.upper()}",
        **functions,
    )  # fmt: skip


MODULATED_LAYER_NORM = modulated_op(
    LAYER_NORM,
    (
        RowKernel(
            name="modulated_layer_norm",
            module=MODULE,
            reads=("x", "residual", "scaling", "shift"),
            column_reads=("weight", "bias"),
            statistics=(
                Statistic("total", "sum", term="residual_sum"),
                Statistic("squares", "sum", term="square_deviation", rebase="rebase_squares"),
            ),
            row_value="inverse_deviation",
            writes=("modulated_layer_norm", "residual_sum"),
            row_writes=("mean", "inverse_deviation"),
            parameters=("eps",),
            constants=_CONSTANTS,
            neutral_padding=True,
            live_tiles=4,
        ),
        RowKernel(
            name="modulated_layer_norm_backward",
            module=MODULE,
            reads=("dy", "x", "scaling"),
            added="dsum",
            row_reads=("mean", "inverse_deviation"),
            column_reads=("weight", "bias"),
            statistics=(Statistic("total", "sum", term="weighted"), Statistic("dot", "sum", term="layer_product")),
            writes=("layer_gradient", "layer_scale_gradient", "shift_gradient"),
            column_writes=("layer_weight_gradient", "bias_gradient"),
            neutral_padding=True,
            live_tiles=6,
        ),
    ),
    ("weight", "bias"),
    reference=modulated_layer_norm,
    gradient=layer_norm_gradient,
)
MODULATED_RMS_NORM = modulated_op(
    RMS_NORM,
    (
        RowKernel(
            name="modulated_rms_norm",
            module=MODULE,
            reads=("x", "residual", "scaling", "shift"),
            column_reads=("weight",),
            statistics=(Statistic("squares", "sum", term="square"),),
            row_value="inverse_rms",
            writes=("modulated_rms_norm", "residual_sum"),
            row_writes=("inverse_rms",),
            parameters=("eps",),
            constants=_CONSTANTS,
            neutral_padding=True,
            live_tiles=4,
        ),
        RowKernel(
            name="modulated_rms_norm_backward",
            module=MODULE,
            reads=("dy", "x", "scaling"),
            added="dsum",
            row_reads=("inverse_rms",),
            column_reads=("weight",),
            statistics=(Statistic("dot", "sum", term="rms_product"),),
            writes=("rms_gradient", "rms_scale_gradient", "shift_gradient"),
            column_writes=("rms_weight_gradient",),
            neutral_padding=True,
            live_tiles=6,
        ),
    ),
    ("weight",),
    reference=modulated_rms_norm,
    gradient=rms_norm_gradient,
)
