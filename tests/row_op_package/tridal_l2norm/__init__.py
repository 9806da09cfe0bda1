"""L2 normalization along a dim: its kernels, and its math in torch's ops."""

from __future__ import annotations

import torch

import tridal
from tridal import ops

KERNELS = "tridal_l2norm.kernels"
SQUARES = ops.Statistic("squares", "sum", term="square")
DOT = ops.Statistic("dot", "sum", term="product")


def reference(
    x: torch.Tensor, reduce: ops.RowReduce, eps: float
) -> torch.Tensor:
    """x / max(norm, eps), where norm is sqrt(sum(x * x))."""
    return x / reduce(x * x, "sum").clamp_min(eps * eps).sqrt()


def gradient(
    dy: torch.Tensor, x: torch.Tensor, reduce: ops.RowReduce, eps: float
) -> torch.Tensor:
    """(dy - x * dot / norm^2) / norm, or dy / eps where norm <= eps."""
    squares, dot = reduce(x * x, "sum"), reduce(x * dy, "sum")
    clamped = squares.clamp_min(eps * eps)
    projection = torch.where(squares > eps * eps, dot / clamped, 0.0)
    return (dy - x * projection) / clamped.sqrt()


L2_NORM = ops.Op(
    name="l2_norm",
    arguments=(
        ops.per_element("input"),
        ops.number("eps", 1e-6, range=(1e-12, 1e-2)),
    ),
    kernels=(
        ops.RowKernel(
            name="l2_norm", module=KERNELS, reads=("x",),
            statistics=(SQUARES,), row_value="norm", writes=("l2_norm",),
            parameters=("eps",), neutral_padding=True, live_tiles=2,
        ),
        ops.RowKernel(
            name="l2_norm_backward", module=KERNELS, reads=("dy", "x"),
            statistics=(SQUARES, DOT), row_value="norm",
            writes=("l2_norm_gradient",), parameters=("eps",),
            neutral_padding=True, live_tiles=4,
        ),
    ),
    reference=reference,
    gradient=gradient,
    saves=("input",),
)  # fmt: skip

l2_norm = tridal.row_function(L2_NORM)
