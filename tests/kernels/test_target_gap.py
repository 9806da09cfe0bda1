"""The op with a column index per row, a choice and a tensor of another shape that `docs/add-an-op.md` shows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from conformance_helpers import INTERPRETER

pytest.importorskip("triton")
sys.path.append(str(Path(__file__).parents[1] / "tensor_op_package"))
from tridal_skipnorm.target_gap import target_gap

pytestmark = pytest.mark.skipif(INTERPRETER.unavailable() is not None, reason="needs the interpreter")
Tensor = torch.Tensor


def expected(x: Tensor, target: Tensor, unit: Tensor, dim: int, base: str) -> Tensor:
    level = x.mean(dim) if base == "mean" else x.sum(dim)
    return (x.gather(dim, target.unsqueeze(dim)).squeeze(dim) - level) / unit


@pytest.mark.parametrize(
    ("columns", "dim", "base", "device"),
    [(7, 0, "mean", "interpreter"), (300, -1, "sum", "interpreter"), (7, -1, "sum", "auto"), (300, 0, "mean", "auto")],
)
def test_results_and_gradients(columns: int, dim: int, base: str, device: str) -> None:
    torch.manual_seed(0)
    x = torch.randn((columns, 5) if dim == 0 else (5, columns), dtype=torch.float64, requires_grad=True)
    target, unit = torch.randint(columns, (5,)), torch.full((1,), 4.0)
    with tridal.use(device=device, fallback="torch"):
        found: Any = target_gap(x, target, unit, dim, base=base)
        wanted = expected(x, target, unit, dim, base)
        assert_close(found, wanted)
        assert_close(*(torch.autograd.grad(result.sin().sum(), x)[0] for result in (found, wanted)))
        if columns < 10:
            assert torch.autograd.gradcheck(lambda x: target_gap(x, target, unit, dim, base=base), x)


@pytest.mark.parametrize("device", ["interpreter", "auto"])
def test_the_gap_is_rounded_to_the_dtype_of_the_input(device: str) -> None:
    torch.manual_seed(0)
    x, target, unit = torch.randn(5, 300).half(), torch.randint(300, (5,)), torch.ones(1)
    with tridal.use(device=device, fallback="torch"):
        found = target_gap(x, target, unit)
    assert_close(found, expected(x.float(), target, unit, -1, "mean").half().float(), rtol=0, atol=0)
