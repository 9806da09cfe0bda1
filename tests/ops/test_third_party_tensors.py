"""Ops of several tensors, and of numbers per row, that a third party declares. tridal has no code for them.

Tests of all ops use samples of them, too: see `op_samples.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from conformance_helpers import INTERPRETER
from index_op import NLL
from op_samples import (
    L2_NORM,
    LOGSUMEXP,
    MEAN_ENERGY,
    OPS,
    SKIP_NORM,
    THIRD_PARTY,
    gradients,
    loss_of,
    skip_norm,
)
from tridal import testing
from tridal.errors import DimensionError, DTypeError, ShapeError

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETER.unavailable() is not None, reason="needs the interpreter")
EACH = pytest.mark.parametrize("sample", THIRD_PARTY.values(), ids=THIRD_PARTY)
OPS_OF_CASES = [L2_NORM, SKIP_NORM, LOGSUMEXP, MEAN_ENERGY, NLL]
SKIP = OPS["skip_norm"]
"""Rows along dim 0, with a residual."""


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    """Kernels compute every call; torch computes none."""
    torch.manual_seed(0)
    with tridal.use(device="interpreter", fallback="error"):
        yield


def test_quick_cases_have_every_schedule_and_direction(add_op: Any) -> None:
    for op in OPS_OF_CASES:
        add_op(op)
    cases = testing.quick_cases(INTERPRETER, [op.name for op in OPS_OF_CASES])
    assert {case.plan for case in cases} == {"planned", *testing.overrides(INTERPRETER)}
    assert {case.direction for case in cases} == {"forward", "backward", "double"}


@pytest.mark.parametrize("op", OPS_OF_CASES, ids=lambda op: op.name)
def test_quick_cases_pass(op: Any, add_op: Any, request: pytest.FixtureRequest) -> None:
    """They have many shapes, layouts, dtypes, values, numbers and absent tensors. A fifth runs, and all at night."""
    add_op(op)
    step = 1 if request.config.getoption("--matrix") else 5
    results = [testing.run_case(case, INTERPRETER) for case in testing.quick_cases(INTERPRETER, [op.name])[::step]]
    assert [f"{result.name}: {result.message}" for result in results if not result.passed] == []


def test_each_result_may_have_a_gradient_alone() -> None:
    for index in range(2):
        tensors = SKIP.leaves(4, 6)
        for needed in tensors.values():
            found, wanted = (
                torch.autograd.grad(loss_of(f(**tensors)[index]), needed, allow_unused=True)[0]
                for f in (SKIP.function, SKIP.expected)
            )
            assert_close(*(torch.zeros_like(needed) if gradient is None else gradient for gradient in (found, wanted)))


def test_dtypes_are_promoted_or_cast_and_gradients_have_the_dtypes_of_their_tensors() -> None:
    made = SKIP.leaves(4, 8, dtype=torch.float32)
    for dtypes, options in (
        ((torch.float16, torch.float32, torch.float32, torch.bfloat16), {}),
        ((torch.bfloat16,) * 4, {"dtype": torch.float32}),
    ):
        tensors = {n: t.detach().to(dtype).requires_grad_() for (n, t), dtype in zip(made.items(), dtypes, strict=True)}
        results = SKIP.function(**tensors, **options)
        assert {result.dtype for result in results} == {torch.float32}
        assert_close(results, SKIP.expected(**{name: tensor.float() for name, tensor in tensors.items()}))
        found = gradients(lambda results=results, **_: results, tensors)
        assert tuple(gradient.dtype for gradient in found.values()) == dtypes


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"weight": torch.ones(4)}, ShapeError, r"skip_norm: weight must have the shape \(5,\), got \(4,\)"),
        ({"residual": torch.ones(5)}, ShapeError, r"skip_norm: residual must have the shape \(3, 5\), got \(5,\)"),
        ({"skip": None}, TypeError, "must be a torch.Tensor, got NoneType"),
        ({"skip": torch.ones(5, dtype=torch.int32)}, DTypeError, "skip_norm: skip must have a floating-point dtype"),
        ({"dim": 2}, DimensionError, r"dim must be from -2 to 1 for input of shape \(3, 5\)"),
        ({"eps": "1"}, TypeError, "skip_norm: eps must be a number, got '1'"),
        ({"eps": torch.ones(())}, TypeError, "skip_norm: eps must be a number, got tensor"),
    ],
    ids=["weight", "residual", "absent", "dtype", "dim", "number", "tensor as number"],
)
def test_a_wrong_argument_is_an_error_that_names_it(change: dict[str, Any], error: type, message: str) -> None:
    given = {"weight": torch.ones(5), "skip": torch.ones(5), **change}
    with pytest.raises(error, match=message):
        skip_norm(torch.ones(3, 5), **given)
