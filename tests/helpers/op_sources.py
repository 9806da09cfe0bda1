"""An op of a third party whose Triton functions are given as source, for tests of wrong functions."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from tridal.ops import Op, RowKernel, RowReduce, Statistic, number, per_element

FUNCTIONS = {
    "square": "def square(x):\n    return x * x",
    "norm": "def norm(squares, eps):\n    return tl.sqrt(squares) + eps",
    "divide": "def divide(x, norm, AXIS: tl.constexpr):\n    return x / tl.expand_dims(norm, AXIS)",
    "product": "def product(dy, x):\n    return x * dy",
    "gradient": (
        "def gradient(dy, x, squares, dot, norm, AXIS: tl.constexpr):\n"
        "    projection = x * tl.expand_dims(dot / (norm * tl.sqrt(squares)), AXIS)\n"
        "    return (dy - projection) / tl.expand_dims(norm, AXIS)"
    ),
}
"""The source of each Triton function of an op that divides a row by its norm plus eps, without the decorator."""

_SQUARES, _DOT = Statistic("squares", "sum", term="square"), Statistic("dot", "sum", term="product")
_numbers = itertools.count()


def make_kernel(folder: Path, monkeypatch: pytest.MonkeyPatch, head: str = "", **functions: str) -> RowKernel:
    """Returns the op's kernel, with other functions or further ones. Their module begins with `head`."""
    return make_op(folder, monkeypatch, head, **functions).forward


def make_op(folder: Path, monkeypatch: pytest.MonkeyPatch, head: str = "", **functions: str) -> Op:
    """Returns the op, with other functions or further ones. Their module begins with `head`."""
    module = f"op_of_a_test_{next(_numbers)}"
    sources = [f"@triton.jit\n{source}" for source in {**FUNCTIONS, **functions}.values()]
    (folder / f"{module}.py").write_text("\n\n\n".join(["import triton\nimport triton.language as tl", head, *sources]))
    monkeypatch.syspath_prepend(folder)
    common: dict[str, Any] = {"module": module, "row_value": "norm", "parameters": ("eps",), "neutral_padding": True}
    return Op(
        name=module,
        arguments=(per_element("input"), number("eps", 1e-3, range=(1e-12, 1e-2))),
        kernels=(
            RowKernel(module, reads=("x",), statistics=(_SQUARES,), writes=("divide",), **common),
            RowKernel(
                f"{module}_backward", reads=("dy", "x"), statistics=(_SQUARES, _DOT), writes=("gradient",), **common
            ),
        ),
        reference=reference,
        gradient=gradient,
        saves=("input",),
    )


def reference(x: torch.Tensor, reduce: RowReduce, eps: float) -> torch.Tensor:
    """x / (norm + eps)."""
    return x / (reduce(x * x, "sum").sqrt() + eps)


def gradient(dy: torch.Tensor, x: torch.Tensor, reduce: RowReduce, eps: float) -> torch.Tensor:
    """(dy - x * sum(x * dy) / (norm * (norm + eps))) / (norm + eps)."""
    norm = reduce(x * x, "sum").sqrt()
    return (dy - x * reduce(x * dy, "sum") / (norm * (norm + eps))) / (norm + eps)
