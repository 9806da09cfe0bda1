"""Ops of several tensors, and of numbers per row, that a third party declares. tridal has no code for them.

Tests of all ops use samples of them, too: see `op_samples.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from conformance_helpers import INTERPRETER
from op_samples import L2_NORM, LOGSUMEXP, MEAN_ENERGY, SKIP_NORM
from several_results import MINUS_PICKED
from tridal import testing

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETER.unavailable() is not None, reason="needs the interpreter")


@pytest.mark.parametrize("op", [L2_NORM, SKIP_NORM, LOGSUMEXP, MEAN_ENERGY, MINUS_PICKED], ids=lambda op: op.name)
def test_quick_cases_pass(op: Any, add_op: Any, request: pytest.FixtureRequest) -> None:
    """They have many shapes, layouts, dtypes, values, numbers and absent tensors. A tenth runs, and all at night."""
    add_op(op)
    step = 1 if request.config.getoption("--matrix") else 10
    results = [testing.run_case(case, INTERPRETER) for case in testing.quick_cases(INTERPRETER, [op.name])[::step]]
    assert [f"{result.name}: {result.message}" for result in results if not result.passed] == []
