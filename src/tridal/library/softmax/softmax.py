"""softmax: its kernels, its maths in torch's ops, and its gradient."""

from __future__ import annotations

import torch

from tridal.library.softmax.bounds import SoftmaxBounds
from tridal.ops import Op, RowKernel, RowReduce, Statistic, per_element

MODULE = "tridal.library.softmax.kernels.softmax"


def reference(x: torch.Tensor, reduce: RowReduce) -> torch.Tensor:
    """exp(x - max) / sum(exp(x - max))."""
    exp = (x - reduce(x, "max").detach()).exp()  # the maximum cancels out, so it needs no gradient
    return exp / reduce(exp, "sum")


def gradient(dy: torch.Tensor, y: torch.Tensor, reduce: RowReduce, scale: float) -> torch.Tensor:
    """scale * y * (dy - sum(y * dy))."""
    dx = y * (dy - reduce(y * dy, "sum"))
    return dx if scale == 1 else dx * scale


_EXAMPLE = (
    ((1.0, 2.0, 3.0), (1.0, 3.0, 5.0)),
    ((0.1, 0.2, 0.7), (0.2, 0.3, 0.5)),
    ((0.0900, 0.2447, 0.6652), (0.0159, 0.1173, 0.8668)),
    ((-0.0381, -0.0792, 0.1173), (-0.0043, -0.0202, 0.0245)),
)
SOFTMAX = Op(
    name="softmax",
    arguments=(per_element("input"),),
    kernels=(
        RowKernel(
            name="softmax",
            module=MODULE,
            reads=("x",),
            statistics=(
                Statistic("row_max", "max", term="x"),
                Statistic("row_sum", "accurate_sum", term="exp_term", rebase="rebase"),
            ),
            row_value="row_scale",
            writes=("softmax",),
            padding=float("-inf"),
            neutral_padding=True,
            scale_mask=True,
            live_tiles=1,
        ),
        RowKernel(
            name="softmax_backward",
            module=MODULE,
            reads=("dy", "y"),
            statistics=(Statistic("row_dot", "sum", term="product"),),
            writes=("softmax_gradient",),
            parameters=("scale",),
            neutral_padding=True,
        ),
    ),
    reference=reference,
    gradient=gradient,
    torch_function=torch.softmax,
    aten="tridal.library.softmax.override:SOFTMAX_KERNELS",
    autocast=True,
    bounds=SoftmaxBounds(log=False),
    example=_EXAMPLE,
    benchmark="tridal.library.softmax.benchmark:SOFTMAX",
)
