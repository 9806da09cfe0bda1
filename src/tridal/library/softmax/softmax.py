"""softmax and log_softmax: their kernels, their math in torch's ops, and their gradients."""

from __future__ import annotations

from dataclasses import replace

import torch

from tridal.library.softmax.bounds import SoftmaxBounds
from tridal.ops import SCALE_MASK, Op, RowKernel, RowReduce, Statistic, per_element

_ROW_MAX = Statistic("row_max", "max", term="x")
_FORWARD = RowKernel(
    name="softmax",
    module="tridal.library.softmax.kernels.softmax",
    reads=("x",),
    statistics=(_ROW_MAX, Statistic("row_sum", "accurate_sum", term="exp_term", rebase="rebase")),
    row_value="row_scale",
    writes=("softmax",),
    padding=float("-inf"),
    neutral_padding=True,
    scale_mask=True,
    live_tiles=1,
)
_LOG_FORWARD = RowKernel(
    name="log_softmax",
    module=_FORWARD.module,
    reads=("x",),
    statistics=(_ROW_MAX, Statistic("row_sum", "accurate_sum", term="exact_exp_term", rebase="rebase")),
    writes=("log_softmax",),
    padding=float("-inf"),
    neutral_padding=True,
    live_tiles=2,
)
_BACKWARD = RowKernel(
    name="softmax_backward",
    module=_FORWARD.module,
    reads=("dy", "y"),
    statistics=(Statistic("row_dot", "sum", term="product"),),
    writes=("softmax_gradient",),
    parameters=("scale",),
    neutral_padding=True,
)
_LOG_BACKWARD = replace(
    _BACKWARD,
    name="log_softmax_backward",
    statistics=(Statistic("row_sum", "sum", term="dy"),),
    writes=("log_softmax_gradient",),
)


def _softmax(x: torch.Tensor, reduce: RowReduce) -> torch.Tensor:
    """exp(x - max) / sum(exp(x - max))."""
    exp = (x - reduce(x, "max").detach()).exp()  # the maximum cancels out, so it needs no gradient
    return exp / reduce(exp, "sum")


def _softmax_gradient(dy: torch.Tensor, y: torch.Tensor, reduce: RowReduce, scale: float) -> torch.Tensor:
    """scale * y * (dy - sum(y * dy))."""
    dx = y * (dy - reduce(y * dy, "sum"))
    return dx if scale == 1 else dx * scale


def _log_softmax(x: torch.Tensor, reduce: RowReduce) -> torch.Tensor:
    """x - max - log(sum(exp(x - max)))."""
    shifted = x - reduce(x, "max").detach()
    return shifted - reduce(shifted.exp(), "sum").log()


def _log_softmax_gradient(dy: torch.Tensor, y: torch.Tensor, reduce: RowReduce, scale: float) -> torch.Tensor:
    """scale * (dy - exp(y) * sum(dy))."""
    dx = dy - y.exp() * reduce(dy, "sum")
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
    kernels=(_FORWARD, _BACKWARD),
    reference=_softmax,
    gradient=_softmax_gradient,
    torch_function=torch.softmax,
    aten="tridal.library.softmax.override:SOFTMAX_KERNELS",
    autocast=True,
    bounds=SoftmaxBounds(log=False),
    example=_EXAMPLE,
    benchmark="tridal.library.softmax.benchmark:SOFTMAX",
)
LOG_SOFTMAX = Op(
    name="log_softmax",
    arguments=SOFTMAX.arguments,
    kernels=(_LOG_FORWARD, _LOG_BACKWARD),
    reference=_log_softmax,
    gradient=_log_softmax_gradient,
    gradient_numbers=SCALE_MASK[1:2],
    torch_function=torch.log_softmax,
    aten="tridal.library.softmax.override:LOG_SOFTMAX_KERNELS",
    autocast=True,
    bounds=SoftmaxBounds(log=True),
    benchmark="tridal.library.softmax.benchmark:LOG_SOFTMAX",
)
