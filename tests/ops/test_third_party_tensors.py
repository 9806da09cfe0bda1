"""Ops of several tensors, and of numbers per row, that a third party declares. tridal has no code for them.

Tests of all ops use samples of them, too: see `op_samples.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tridal
from conformance_helpers import INTERPRETER
from op_samples import L2_NORM, LOGSUMEXP, MEAN_ENERGY, SKIP_NORM, skip_norm
from several_results import MINUS_PICKED
from tridal import testing
from tridal.errors import DimensionError, DTypeError, ShapeError

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETER.unavailable() is not None, reason="needs the interpreter")


@pytest.mark.parametrize("op", [L2_NORM, SKIP_NORM, LOGSUMEXP, MEAN_ENERGY, MINUS_PICKED], ids=lambda op: op.name)
def test_quick_cases_pass(op: Any, add_op: Any, request: pytest.FixtureRequest) -> None:
    """They have many shapes, layouts, dtypes, values, numbers and absent tensors. A tenth runs, and all at night."""
    add_op(op)
    step = 1 if request.config.getoption("--matrix") else 10
    results = [testing.run_case(case, INTERPRETER) for case in testing.quick_cases(INTERPRETER, [op.name])[::step]]
    assert [f"{result.name}: {result.message}" for result in results if not result.passed] == []


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"weight": torch.ones(4)}, ShapeError, r"skip_norm: weight must have the shape \(5,\), got \(4,\)"),
        ({"residual": torch.ones(5)}, ShapeError, r"skip_norm: residual must have the shape \(3, 5\), got \(5,\)"),
        ({"skip": torch.ones(5, dtype=torch.int32)}, DTypeError, "skip_norm: skip must have a floating-point dtype"),
        ({"dim": 2}, DimensionError, r"dim must be from -2 to 1 for input of shape \(3, 5\)"),
        ({"eps": torch.ones(())}, TypeError, "skip_norm: eps must be a number, got tensor"),
    ],
    ids=["weight", "residual", "dtype", "dim", "number"],
)
def test_a_wrong_argument_is_an_error_that_names_it(change: dict[str, Any], error: type, message: str) -> None:
    given = {"weight": torch.ones(5), "skip": torch.ones(5), **change}
    with tridal.use(device="interpreter", fallback="error"), pytest.raises(error, match=message):
        skip_norm(torch.ones(3, 5), **given)
