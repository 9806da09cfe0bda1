"""Tests the error bounds: correct results are inside them, and imprecise sums and small faults are outside."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch

from conformance_helpers import CPU, Function, failures, rounded, small_cases
from third_party_op import UNIT_NORM
from tridal.ops import table
from tridal.testing import Case, Implementation, check
from tridal.testing.checking import difference
from tridal.testing.exact import Call, gradients_of
from tridal.testing.inputs import make_values
from tridal.testing.roundings import in_order
from tridal.testing.tolerance import UNIT


def sums_in(dtype: torch.dtype) -> Function:
    """Returns a softmax that adds the terms of a row one after the other in this dtype."""

    def softmax(x: torch.Tensor, dim: int, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        x = x.to(out_dtype or x.dtype)
        e = (x.float() - x.float().amax(dim, keepdim=True)).exp()
        row_sum = e.to(dtype).cumsum(dim).narrow(dim, -1, 1).float()
        return (e / row_sum).to(x.dtype)

    return softmax


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_correct_results_of_softmax_are_inside_its_bounds(op: str) -> None:
    cases = small_cases(op)
    assert failures(rounded(op), [case for case in cases if case.direction != "double"]) == []
    assert failures(getattr(torch, op), [case for case in cases if case.direction == "double"]) == []


@pytest.mark.parametrize(
    ("dtype", "found_by"),
    [
        (torch.bfloat16, "forward 6x1001 dim=-1 float32"),
        (torch.bfloat16, "forward 5x257 dim=-1 bfloat16"),
        (torch.float16, "forward 5x257 dim=-1 float16"),
    ],
)
def test_softmax_with_an_imprecise_sum_is_outside_its_bounds(dtype: torch.dtype, found_by: str) -> None:
    assert failures(sums_in(dtype), [case for case in small_cases("softmax") if case.name.endswith(found_by)])


@pytest.mark.parametrize(
    ("fault", "found_by"),
    [
        ("sums in float16", "backward 33x257 dim=-1 float32"),
        ("sums in the dtype of the input", "backward 5x257 dim=-1 bfloat16"),
        ("sums in the dtype of the input", "backward 5x257 dim=-1 float16"),
    ],
)
def test_softmax_gradient_with_an_imprecise_sum_is_outside_its_bounds(fault: str, found_by: str) -> None:
    assert failures(rounded("softmax", fault), [case for case in small_cases("softmax") if found_by in case.name])


@pytest.mark.parametrize("interpreted", [True, False])
def test_many_roundings_of_a_sum_are_inside_the_bounds_of_the_interpreter_only(interpreted: bool) -> None:
    """NumPy adds the elements of a row one after the other, except along the last dim."""

    def softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
        return (torch.softmax(x.double(), dim) * (1 + 300 * UNIT["float32"])).float()

    case = Case("softmax", "forward", (1001, 6), 0)
    assert check(case, Implementation(CPU, lambda op: softmax, interpreted)).passed == interpreted


def unit_norm(fault: str = "") -> Function:
    """Returns L2 normalization in float32 or float64, rounded once, with a fault or without one."""

    def function(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None, eps: float = 1e-6) -> torch.Tensor:
        x = x.to(dtype or x.dtype)

        def reduce(terms: torch.Tensor, how: str) -> torch.Tensor:
            if fault == "omits the last element":
                terms = terms.narrow(dim, 0, terms.shape[dim] - 1)
            elif fault == "sums in bfloat16":
                terms = terms.bfloat16().cumsum(dim).narrow(dim, -1, 1).to(terms.dtype)
            return terms.sum(dim, keepdim=True)

        y = UNIT_NORM.reference(x.to(torch.promote_types(x.dtype, torch.float32)), reduce, eps).to(x.dtype)
        if fault == "gradient":
            y = y * 1.01 - y.detach() * 0.01
        return y * 0 if fault == "zeros" else y

    return function


@pytest.mark.usefixtures("unit_norm_in_table")
def test_correct_results_of_an_op_are_inside_its_derived_bounds() -> None:
    """dX of a row of one element cancels, so its rounding error is larger than dX."""
    assert failures(unit_norm(), [*small_cases("unit_norm")[::3], Case("unit_norm", "backward", (5000, 1))]) == []


@pytest.mark.usefixtures("unit_norm_in_table")
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("fault", ["zeros", "omits the last element", "sums in bfloat16"])
def test_faulty_results_of_an_op_are_outside_its_derived_bounds(direction: Any, fault: str) -> None:
    assert failures(unit_norm(fault), [Case("unit_norm", direction, (6, 1001))])
    if fault == "zeros":
        assert len(failures(unit_norm(fault), [Case("unit_norm", direction, (33, 257), dtype="bfloat16")])) == 1


def test_second_gradient_of_a_linear_op_is_zero() -> None:
    x = torch.randn(3, 5, requires_grad=True)
    (found,) = gradients_of([x - x.mean(-1, keepdim=True)], [x], [torch.ones(3, 5)], twice=True)
    assert torch.equal(found, torch.zeros(3, 5))


@pytest.mark.usefixtures("unit_norm_in_table")
def test_a_gradient_that_is_wrong_in_the_same_way_as_the_ops_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact gradients are those of autograd, not those of the op's own gradient."""
    right = UNIT_NORM.gradient
    monkeypatch.setitem(vars(UNIT_NORM), "gradient", lambda *arguments, **numbers: 1.01 * right(*arguments, **numbers))
    assert failures(unit_norm("gradient"), [Case("unit_norm", "backward", (33, 257))])


def test_a_saved_result_in_16_bits_does_not_change_the_comparison_with_autograd() -> None:
    """The gradient of softmax is exact for the stored output, also if autograd's is for the exact one."""
    softmax, x = table.op_named("softmax"), torch.randn(5, 257, generator=torch.Generator().manual_seed(0))
    dy = torch.randn(5, 257, generator=torch.Generator().manual_seed(1)).double()
    y = torch.softmax(x, -1).bfloat16().double()
    call = Call(softmax, (x, -1, torch.float32, None, 1.0, False, False), {"output": y})
    stored, ideal = (call.declared_gradients([dy], stored=stored)["input"] for stored in (True, False))
    assert difference(ideal, call.gradients([dy])["input"], torch.full((5, 257), 1e-12))[2] is None
    assert (stored - ideal).abs().max() > 1e-5
    torch.testing.assert_close(stored, y * (dy - (y * dy).sum(-1, keepdim=True)), rtol=1e-12, atol=0)


def test_small_terms_that_a_sum_in_order_loses_are_simulated() -> None:
    terms = make_values("normal", (65_537, 2), 0).exp().float().double()
    added = torch.from_numpy(numpy.add.accumulate(terms.float().numpy())[-1]).double()
    lost = terms.sum(0) - added
    assert (lost > 8 * UNIT["float32"] * math.sqrt(65_537) / 3 * added).all(), "independent roundings lose less"
    torch.testing.assert_close(terms.sum(0) - in_order(terms, 0).sum(0), lost, rtol=0.05, atol=0)
