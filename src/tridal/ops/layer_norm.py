"""LayerNorm: its kernels, its maths in torch's ops, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tridal.ops.fused_op import FusedOp
from tridal.ops.norms import Tensor, column_sum, gradient_of_sum, widened
from tridal.ops.row_reduce import RowReduce, accumulator
from tridal.runtime.row_kernel import RowKernel, Statistic

MODULE = "tridal.kernels.layer_norm"


def reference(
    input: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float,
    rows: RowReduce | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the normalised sum, the sum if there is a residual, and mean and 1 / sqrt(variance + eps) of each row."""
    total = input if residual is None else input + residual
    dtype = accumulator(input, residual, weight, bias)
    x, scale, shift = (widened(tensor, dtype, dims) for tensor in (total, weight, bias))
    rows = rows or RowReduce(x, -1)
    mean = rows.mean(x)
    centred = x - mean
    inverse_deviation = torch.rsqrt(rows.mean(centred * centred) + eps)
    y = centred * inverse_deviation
    y = y if scale is None else y * scale
    y = (y if shift is None else y + shift).to(total.dtype).reshape(total.shape)
    return y, None if residual is None else total, mean.squeeze(-1), inverse_deviation.squeeze(-1)


def gradient(
    dy: Tensor | None, dsum: Tensor | None, x: Tensor, mean: Tensor, inverse_deviation: Tensor, weight: Tensor | None,
    dims: int, eps: float, output_mask: Sequence[bool], rows: RowReduce | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Returns the gradients of the sum x, and of weight and bias in the dtype of statistics."""
    shape, dsum = x.shape[x.dim() - dims :], gradient_of_sum(dsum, x)
    if dy is None:
        zeros = x.new_zeros(shape, dtype=accumulator(x, weight))
        return None if dsum is None else dsum.clone(), zeros, zeros.clone()
    dtype = accumulator(dy, x, weight)
    dn, wide, scale = widened(dy, dtype, dims), widened(x, dtype, dims), widened(weight, dtype, dims)
    rows = rows or RowReduce(wide, -1)
    if torch.is_grad_enabled():
        centred = wide - rows.mean(wide)
        inverse_deviation = torch.rsqrt(rows.mean(centred * centred) + eps)
    else:
        centred, inverse_deviation = wide - mean.to(dtype).unsqueeze(-1), inverse_deviation.to(dtype).unsqueeze(-1)
    n, dx = centred * inverse_deviation, None
    dweight = column_sum(dn * n).reshape(shape) if output_mask[1] else None
    dbias = column_sum(dn).reshape(shape) if output_mask[2] else None
    if output_mask[0]:
        dn = dn if scale is None else dn * scale
        dx = ((dn - rows.mean(dn) - n * rows.mean(dn * n)) * inverse_deviation).reshape(x.shape)
        dx = (dx if dsum is None else dx + dsum).to(x.dtype)
    return dx, dweight, dbias


LAYER_NORM = FusedOp(
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
    schema="(Tensor input, Tensor? residual, Tensor? weight, Tensor? bias, int dims, float eps) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    backward_schema="(Tensor? dy, Tensor? dsum, Tensor x, Tensor mean, Tensor inverse_deviation, Tensor? weight, "
    "int dims, float eps, bool[] output_mask) -> (Tensor, Tensor, Tensor)",
    reference=reference,
    gradient=gradient,
    gradient_index=(0, 0, 1, 2, -1, -1),
    differentiable_results=2,
)
