"""An op as a third party declares it, without Triton functions."""

from __future__ import annotations

import torch

from tridal.ops import Op, RowKernel, RowReduce, Statistic, number, per_element


def reference(x: torch.Tensor, reduce: RowReduce, eps: float) -> torch.Tensor:
    """L2 normalization: x / sqrt(sum(x * x) + eps)."""
    return x * (reduce(x * x, "sum") + eps).rsqrt()


def gradient(dy: torch.Tensor, x: torch.Tensor, reduce: RowReduce, eps: float) -> torch.Tensor:
    """(dy - x * sum(x * dy) / s) / sqrt(s), where s is sum(x * x) + eps."""
    squares = reduce(x * x, "sum") + eps
    return (dy - x * (reduce(x * dy, "sum") / squares)) * squares.rsqrt()


_SQUARES, _DOT = Statistic("squares", "sum", "square"), Statistic("dot", "sum", "product")
UNIT_NORM = Op(
    name="unit_norm",
    arguments=(per_element("input"), number("eps", 1e-6, range=(1e-12, 1e-2))),
    kernels=(
        RowKernel("unit_norm", "no_module", ("x",), (_SQUARES,), ("unit_norm",), parameters=("eps",)),
        RowKernel(
            "unit_norm_backward",
            "no_module",
            ("dy", "x"),
            (_SQUARES, _DOT),
            ("unit_norm_gradient",),
            parameters=("eps",),
        ),
    ),
    reference=reference,
    gradient=gradient,
    saves=("input",),
)
"""An op without a function in torch and without bounds of its own."""
