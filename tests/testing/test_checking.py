"""Tests that the conformance suite finds faults: each faulty implementation below fails a case that it should fail."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tridal
from conformance_helpers import INTERPRETER, Function, failures, is_found, on_cpu, rounded, small_cases
from tridal import testing
from tridal.testing import cases
from tridal.testing.cases import Case
from tridal.testing.checking import difference
from tridal.testing.tolerance import UNIT

CASES = [case for case in small_cases("softmax") if case.direction != "double"]
MODIFIED_CASES = [
    case
    for case in cases(INTERPRETER, ["softmax"])
    if case.plan == "planned" and case.modified
    # torch computes gradients from Y before it is rounded to 16 bits, and gives zero where a masked row is NaN
    and (case.direction == "forward" or case.out_dtype[-2:] in ("32", "64"))
    and (case.direction == "forward" or case.mask is None or case.masked_rows == "zero")
]  # fmt: skip


def modified_softmax(name: str = "", change: Callable[[Any], Any] = lambda value: value) -> Function:
    """tridal's softmax of a scaled and masked input, computed by torch. A fault changes an argument that is given."""

    def softmax(*arguments: Any, **given: Any) -> torch.Tensor:
        if given.get(name) is not None:
            given[name] = change(given[name])
        with tridal.use(device="auto"):
            return tridal.softmax(*arguments, **given)  # type: ignore[no-any-return]

    return softmax


def test_correct_modified_softmax_passes() -> None:
    assert failures(modified_softmax(), MODIFIED_CASES) == []


@pytest.mark.parametrize(
    ("name", "change", "found_by"),
    [
        ("mask", lambda mask: ~mask if mask.dtype is torch.bool else mask, "mask boolean"),
        ("mask", lambda mask: mask if mask.dtype is torch.bool else mask * 0, "mask added"),
        ("causal", lambda causal: False, "causal"),
        ("masked_rows", lambda masked_rows: "nan", "zero rows"),
        ("scale", lambda scale: 1.0001 * scale, "forward"),
        ("scale", lambda scale: 1.0001 * scale, "backward"),
    ],
)
def test_fault_of_modified_softmax_is_found(name: str, change: Callable[[Any], Any], found_by: str) -> None:
    assert is_found(modified_softmax(name, change), [case for case in MODIFIED_CASES if found_by in case.name])


CORRECT = rounded("softmax")


def pads_with_zeros(x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
    """Pads rows to a power of two with zeros instead of -inf."""
    if x.numel() == 0 or x.dim() == 0:
        return CORRECT(x, dim, dtype)
    x, cols = x.movedim(dim, -1), x.shape[dim]
    padded = torch.nn.functional.pad(x, (0, (1 << (cols - 1).bit_length()) - cols))
    return CORRECT(padded, -1, dtype)[..., :cols].movedim(-1, dim)


def does_not_subtract_the_maximum(x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
    e = x.to(dtype or x.dtype).exp()
    return e / e.sum(dim, keepdim=True)


def changes_its_input(x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
    y = CORRECT(x.clone(), dim, dtype)
    x.detach().zero_()
    return y


def raises(x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
    raise RuntimeError("no kernel today")


FAULTS: dict[str, Function] = {
    "uniform": lambda x, dim, dtype: CORRECT(x * 0, dim, dtype),
    "ignores dim": lambda x, dim, dtype: CORRECT(x, -1, dtype),
    "replaces NaN": lambda x, dim, dtype: CORRECT(x, dim, dtype).nan_to_num(),
    "ignores strides": lambda x, dim, dtype: CORRECT(x.as_strided(x.shape, torch.empty(x.shape).stride()), dim, dtype),
    "returns float32": lambda x, dim, dtype: CORRECT(x, dim, dtype).float(),
    "casts the result instead of the input": lambda x, dim, dtype: CORRECT(x, dim).to(dtype or x.dtype),
    "pads with zeros": pads_with_zeros,
    "does not subtract the maximum": does_not_subtract_the_maximum,
    "changes its input": changes_its_input,
    "raises": raises,
}


@pytest.mark.parametrize(
    ("fault", "found_by"),
    [
        ("uniform", "forward"),
        ("pads with zeros", "forward 33x257"),
        ("does not subtract the maximum", "shifted"),
        ("ignores dim", "forward 3x5x7x11"),
        ("replaces NaN", "row of -inf"),
        ("replaces NaN", "some nan"),
        ("replaces NaN", "some +inf"),
        ("ignores strides", "transposed"),
        ("ignores strides", "permuted"),
        ("returns float32", "bfloat16"),
        ("casts the result instead of the input", "bfloat16 to float32"),
        ("changes its input", "forward"),
        ("raises", "forward"),
    ],
)
def test_faulty_softmax_is_found(fault: str, found_by: str) -> None:
    def faulty(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return FAULTS[fault](x, dim, dtype)

    chosen = [case for case in CASES if case.direction == "forward" and found_by in case.name]
    assert failures(CORRECT, chosen) == []
    assert is_found(faulty, chosen)


@pytest.mark.parametrize(
    ("fault", "found_by"),
    [
        ("zeros", "backward 33x257"),
        ("no sum", "backward 33x257"),
        ("reads beyond the row", "backward 33x257"),
        ("omits the last element", "backward 6x1001"),
        ("ignores strides", "expanded gradient"),
    ],
)
def test_faulty_gradient_is_found(fault: str, found_by: str) -> None:
    assert is_found(rounded("softmax", fault), [case for case in CASES if found_by in case.name])


def test_faulty_second_derivative_is_found() -> None:
    def softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The value and the first derivative are correct."""
        return torch.softmax(x, dim, dtype) + (x - x.detach()) ** 2 * 1e-3

    directions: tuple[Any, ...] = ("forward", "backward", "double")
    passed = [testing.check(Case("softmax", each, (5, 7)), on_cpu(softmax)).passed for each in directions]
    assert passed == [True, True, False]


def test_exception_is_the_failure_of_the_case() -> None:
    result = testing.check(Case("softmax", "forward", (3, 5)), on_cpu(lambda x, dim: raises(x, dim, None)))
    assert result.message is not None
    assert re.fullmatch(r"raised RuntimeError: no kernel today \(in raises, .*test_checking\.py:\d+\)", result.message)


def test_the_error_of_a_result_is_that_which_is_closest_to_its_bound() -> None:
    """Of two elements with a difference, the one with the smaller bound may be closer to it."""

    def off(x: Any, dim: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.softmax(x, dim) * (1 + 2**-23)

    exact, result = (testing.check(Case("softmax", "forward", (3, 5)), on_cpu(f)) for f in (torch.softmax, off))
    assert (exact.passed, result.passed) == (True, True)
    assert 0 < result.error <= result.tolerance < 100 * UNIT["float32"]
    assert result.error / result.tolerance > exact.error / exact.tolerance


@pytest.mark.parametrize(
    ("found", "exact", "passes"),
    [(math.inf, 65_633, True), (math.inf, 65_400, False), (-math.inf, 65_633, False), (65_504, 65_633, False)],
)
def test_infinity_passes_where_the_exact_value_is_too_large_for_the_dtype(
    found: float, exact: float, passes: bool
) -> None:
    largest = torch.finfo(torch.float16).max
    result = difference(*(torch.tensor([float(number)]).double() for number in (found, exact, 40)), largest)
    assert (result[2] is None) == passes
