"""log_softmax: its kernels, its maths in torch's ops, and its gradient."""

from __future__ import annotations

import torch

from tridal.library.softmax.bounds import SoftmaxBounds
from tridal.library.softmax.softmax import MODULE
from tridal.ops import SCALE_MASK, Op, RowKernel, RowReduce, Statistic, per_element


def reference(x: torch.Tensor, reduce: RowReduce) -> torch.Tensor:
    """x - max - log(sum(exp(x - max)))."""
    shifted = x - reduce(x, "max").detach()
    return shifted - reduce(shifted.exp(), "sum").log()


def gradient(dy: torch.Tensor, y: torch.Tensor, reduce: RowReduce, scale: float) -> torch.Tensor:
    """scale * (dy - exp(y) * sum(dy))."""
    dx = dy - y.exp() * reduce(dy, "sum")
    return dx if scale == 1 else dx * scale


LOG_SOFTMAX = Op(
    name="log_softmax",
    arguments=(per_element("input"),),
    kernels=(
        RowKernel(
            name="log_softmax",
            module=MODULE,
            reads=("x",),
            statistics=(
                Statistic("row_max", "max", term="x"),
                Statistic("row_sum", "accurate_sum", term="exact_exp_term", rebase="rebase"),
            ),
            writes=("log_softmax",),
            padding=float("-inf"),
            neutral_padding=True,
            live_tiles=2,
        ),
        RowKernel(
            name="log_softmax_backward",
            module=MODULE,
            reads=("dy", "y"),
            statistics=(Statistic("row_sum", "sum", term="dy"),),
            writes=("log_softmax_gradient",),
            parameters=("scale",),
            neutral_padding=True,
        ),
    ),
    reference=reference,
    gradient=gradient,
    gradient_numbers=SCALE_MASK[1:2],
    torch_function=torch.log_softmax,
    aten="tridal.library.softmax.override:LOG_SOFTMAX_KERNELS",
    autocast=True,
    bounds=SoftmaxBounds(log=True),
    benchmark="tridal.library.softmax.benchmark:LOG_SOFTMAX",
)
