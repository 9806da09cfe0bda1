"""L2 normalisation along a dim: its kernels, and its maths in torch's ops."""

from __future__ import annotations

import torch

import tridal
from tridal.ops import RowKernel, RowOp, RowReduce, Statistic

KERNELS = "tridal_l2norm.kernels"
SQUARES = Statistic("squares", "sum", term="square")
DOT = Statistic("dot", "sum", term="product")


def reference(x: torch.Tensor, reduce: RowReduce, eps: float) -> torch.Tensor:
    """x / max(norm, eps), where norm is sqrt(sum(x * x))."""
    return x / reduce(x * x, "sum").clamp_min(eps * eps).sqrt()


def gradient(
    dy: torch.Tensor, x: torch.Tensor, reduce: RowReduce, eps: float
) -> torch.Tensor:
    """(dy - x * dot / norm^2) / norm, or dy / eps where norm <= eps."""
    squares, dot = reduce(x * x, "sum"), reduce(x * dy, "sum")
    clamped = squares.clamp_min(eps * eps)
    projection = torch.where(squares > eps * eps, dot / clamped, 0.0)
    return (dy - x * projection) / clamped.sqrt()


L2_NORM = RowOp(
    name="l2_norm",
    forward=RowKernel(
        name="l2_norm", module=KERNELS, reads=("x",), statistics=(SQUARES,),
        row_value="norm", writes=("l2_norm",), parameters=("eps",),
        neutral_padding=True, live_tiles=2,
    ),
    backward=RowKernel(
        name="l2_norm_backward", module=KERNELS, reads=("dy", "x"),
        statistics=(SQUARES, DOT), row_value="norm",
        writes=("l2_norm_gradient",), parameters=("eps",),
        neutral_padding=True, live_tiles=4,
    ),
    reference=reference,
    gradient=gradient,
    saves="input",
    parameters={"eps": 1e-6},
)  # fmt: skip

l2_norm = tridal.row_function(L2_NORM)
