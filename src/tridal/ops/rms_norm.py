"""RMSNorm: its kernels, its maths in torch's ops, and its gradient."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from tridal.ops.fused_op import FusedOp
from tridal.ops.norms import Tensor, column_sum, gradient_of_sum, widened
from tridal.ops.row_reduce import RowReduce, accumulator
from tridal.runtime.row_kernel import RowKernel, Statistic

MODULE = "tridal.kernels.rms_norm"


def result_dtype(sum_dtype: torch.dtype, weight: Tensor | None, casting: str) -> torch.dtype:
    """Returns the dtype of the normalised sum. `casting` is "llama", "gemma" or "" for torch's.

    torch's is the sum's dtype, or the promoted dtype in versions of torch that multiply with the weight in that dtype.
    """
    promotes = casting == "llama" or (casting == "" and _TORCH_PROMOTES)
    return torch.promote_types(sum_dtype, weight.dtype) if promotes and weight is not None else sum_dtype


def _torch_promotes() -> bool:
    """Returns whether torch's rms_norm of a bfloat16 input with a float32 weight gives float32."""
    input, weight = (torch.ones(1, dtype=dtype, device="cpu") for dtype in (torch.bfloat16, torch.float32))
    warns_always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # otherwise, torch would not show its warning about mixed dtypes to the user
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.rms_norm(input, (1,), weight).dtype is torch.float32
    finally:
        torch.set_warn_always(warns_always)


_TORCH_PROMOTES = _torch_promotes()


def reference(
    input: Tensor, residual: Tensor | None, weight: Tensor | None, dims: int, eps: float, weight_offset: float,
    casting: str, rows: RowReduce | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the normalised sum, the sum if there is a residual, and 1 / sqrt(mean of squares + eps) of each row."""
    total = input if residual is None else input + residual
    dtype = accumulator(input, residual, weight)
    x, scale = widened(total, dtype, dims), widened(weight, dtype, dims)
    rows = rows or RowReduce(x, -1)
    inverse_rms = torch.rsqrt(rows.mean(x * x) + eps)
    y = x * inverse_rms
    if casting == "llama":
        y = y.to(total.dtype).to(dtype)
    if scale is not None:
        y = y * (scale + weight_offset)
    y = y.to(result_dtype(total.dtype, weight, casting)).reshape(total.shape)
    return y, None if residual is None else total, inverse_rms.squeeze(-1)


def gradient(
    dy: Tensor | None, dsum: Tensor | None, x: Tensor, inverse_rms: Tensor, weight: Tensor | None, dims: int,
    eps: float, weight_offset: float, output_mask: Sequence[bool], rows: RowReduce | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the gradients of the sum x, and of the weight in the dtype of statistics.

    The gradient does not depend on `casting`: it passes through the rounding.
    """
    dsum = gradient_of_sum(dsum, x)
    if dy is None:
        dweight = None if weight is None else torch.zeros_like(weight, dtype=accumulator(x, weight))
        return None if dsum is None else dsum.clone(), dweight
    dtype = accumulator(dy, x, weight)
    dn, wide, scale = widened(dy, dtype, dims), widened(x, dtype, dims), widened(weight, dtype, dims)
    rows = rows or RowReduce(wide, -1)
    inverse_rms = (
        torch.rsqrt(rows.mean(wide * wide) + eps) if torch.is_grad_enabled() else inverse_rms.to(dtype).unsqueeze(-1)
    )
    n, dx, dweight = wide * inverse_rms, None, None
    if output_mask[1] and weight is not None:
        dweight = column_sum(dn * n).reshape(weight.shape)
    if output_mask[0]:
        dn = dn if scale is None else dn * (scale + weight_offset)
        dx = ((dn - n * rows.mean(dn * n)) * inverse_rms).reshape(x.shape)
        dx = (dx if dsum is None else dx + dsum).to(x.dtype)
    return dx, dweight


RMS_NORM = FusedOp(
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
    schema="(Tensor input, Tensor? residual, Tensor? weight, int dims, float eps, float weight_offset, str casting) -> "
    "(Tensor, Tensor, Tensor)",
    backward_schema="(Tensor? dy, Tensor? dsum, Tensor x, Tensor inverse_rms, Tensor? weight, int dims, float eps, "
    "float weight_offset, bool[] output_mask) -> (Tensor, Tensor)",
    reference=reference,
    gradient=gradient,
    gradient_index=(0, 0, 1, -1, -1, -1, -1),
    differentiable_results=2,
)
