"""Tests that the conformance suite finds faults: each faulty implementation below fails a case that it should fail."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from conformance_helpers import Function, failures, is_found, modified_cases, on_cpu, rounded, small_cases
from tridal import testing
from tridal.testing.cases import Case
from tridal.testing.checking import difference
from tridal.testing.tolerance import UNIT

CASES = small_cases("softmax")
MODIFIED_CASES = modified_cases("softmax")


def modified_softmax(fault: str = "") -> Function:
    """Returns softmax of a scaled and masked input in torch's ops, with a fault or none."""

    def softmax(
        x: torch.Tensor, dim: int, dtype: torch.dtype | None = None, *, scale: float | None = None,
        mask: torch.Tensor | None = None, causal: bool = False, masked_rows: str = "nan",
    ) -> torch.Tensor:  # fmt: skip
        dtype = dtype or x.dtype
        wide = torch.promote_types(dtype, torch.float32)
        x = x.to(dtype).to(torch.float16 if fault == "scaled in float16" else wide)
        factor = 1.0 if scale is None else scale
        if fault == "gradient not scaled":
            x = x + (x * factor - x).detach()
        elif fault != "scaled after the mask":
            x = x * factor
        if mask is not None and mask.dtype is torch.bool:
            x = x.masked_fill(mask if fault == "mask inverted" else ~mask, -torch.inf)
        elif mask is not None and fault != "mask not added":
            x = x + mask.to(x.dtype)
        if fault == "scaled after the mask":
            x = x * factor
        if causal:
            diagonal = 1 if fault == "one column too many" else 0
            x = x.masked_fill(torch.ones(x.shape[-2:]).tril(diagonal) == 0, -torch.inf)
        empty = (x == -torch.inf).all(dim, keepdim=True)
        y = torch.softmax(x.masked_fill(empty, 0.0).to(wide), dim)
        if masked_rows == "zero" and fault != "never zero":
            return y.masked_fill(empty, 0.0).to(dtype)
        return (y + torch.where(empty, torch.nan, 0.0).to(wide)).to(dtype)

    return softmax


def has_torchs_gradient(case: Case) -> bool:
    """Whether torch's autograd of `modified_softmax` gives the gradient that the suite expects.

    torch computes the gradient from Y before it is rounded to 16 bits, and masked_fill gives zero where a row is NaN.
    """
    exact_dtype = case.out_dtype in ("float32", "float64")
    nan_rows = case.mask is not None and case.masked_rows == "nan"
    return case.direction == "forward" or (exact_dtype and not nan_rows)


def test_correct_modified_softmax_passes_every_case() -> None:
    assert failures(modified_softmax(), [case for case in MODIFIED_CASES if has_torchs_gradient(case)]) == []


@pytest.mark.parametrize(
    ("fault", "found_by"),
    [
        ("mask inverted", "mask boolean"),
        ("mask not added", "mask added"),
        ("scaled after the mask", "mask added"),
        ("one column too many", "causal"),
        ("never zero", "zero rows"),
        ("gradient not scaled", "backward"),
        ("scaled in float16", "scale"),
    ],
)
def test_fault_of_modified_softmax_is_found(fault: str, found_by: str) -> None:
    cases = [case for case in MODIFIED_CASES if has_torchs_gradient(case) and found_by in case.name]
    assert is_found(modified_softmax(fault), cases)


def pads_with_zeros(x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
    """Pads rows to a power of two with zeros instead of -inf."""
    x = x.to(dtype or x.dtype)
    if x.numel() == 0 or x.dim() == 0:
        return torch.softmax(x, dim)
    x, cols = x.movedim(dim, -1), x.shape[dim]
    padded = torch.nn.functional.pad(x, (0, (1 << (cols - 1).bit_length()) - cols))
    return torch.softmax(padded, -1)[..., :cols].movedim(-1, dim)


def does_not_subtract_the_maximum(x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
    e = x.to(dtype or x.dtype).exp()
    return e / e.sum(dim, keepdim=True)


def casts_the_result(x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
    return (torch.softmax(x, dim) if x.is_floating_point() else torch.softmax(x, dim, dtype)).to(dtype or x.dtype)


def changes_its_input(x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
    y = torch.softmax(x, dim, dtype)
    x.detach().zero_()
    return y


def raises(x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
    raise RuntimeError("no kernel today")


FAULTS: dict[str, Function] = {
    "uniform": lambda x, dim, dtype: torch.softmax(x * 0, dim, dtype),
    "ignores dim": lambda x, dim, dtype: torch.softmax(x, -1, dtype),
    "replaces NaN": lambda x, dim, dtype: torch.softmax(x, dim, dtype).nan_to_num(),
    "ignores strides": lambda x, dim, dtype: torch.softmax(
        x.as_strided(x.shape, torch.empty(x.shape).stride()), dim, dtype
    ),
    "returns float32": lambda x, dim, dtype: torch.softmax(x, dim, dtype).float(),
    "pads with zeros": pads_with_zeros,
    "does not subtract the maximum": does_not_subtract_the_maximum,
    "casts the result instead of the input": casts_the_result,
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

    assert is_found(faulty, [case for case in CASES if found_by in case.name])


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

    cases = [Case("softmax", "forward", (5, 7)), Case("softmax", "backward", (5, 7)), Case("softmax", "double", (5, 7))]
    passed = [testing.check(case, on_cpu(softmax)).passed for case in cases]
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
