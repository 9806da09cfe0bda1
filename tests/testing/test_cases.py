"""Tests the cases of the conformance suite: which ops, traits, dtypes and devices they cover."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from conformance_helpers import INTERPRETER
from several_results import BY_SUM
from tridal import library
from tridal.errors import PlanError
from tridal.ops import number, table
from tridal.ops.arguments import Argument
from tridal.ops.op import Op
from tridal.testing.cases import DIRECTIONS, Direction, Layout, Mask, Values, ordinary
from tridal.testing.plan_overrides import overrides
from tridal.testing.quick_cases import quick_cases
from tridal.testing.suite import cases


class OneDtype:
    """A backend that computes float32 only and has one device without streams."""

    dtypes = frozenset({"float32"})
    schedules = frozenset({"whole_row"})
    features: frozenset[str] = frozenset()
    device_type = "cpu"

    def device_count(self) -> int:
        return 1


def test_cases_have_unique_names_and_cover_every_op_layout_value_and_mask() -> None:
    found = cases(INTERPRETER)
    assert len({case.name for case in found}) == len(found)
    assert {case.op for case in found} == set(table.ops())
    assert {case.layout for case in found} == set(get_args(Layout))
    assert {case.values for case in found} == set(get_args(Values))
    assert {case.mask for case in found} == {None, *get_args(Mask)}
    modified = {case.op for case in found if case.modified}
    assert modified == {name for name, op in table.one_tensor_ops().items() if op.scale_mask}


@pytest.mark.parametrize("op", library.OPS, ids=lambda op: op.name)
def test_every_op_has_cases_in_all_directions_with_every_override(op: Op) -> None:
    found = cases(INTERPRETER, [op.name])
    assert {case.op for case in found} == {op.name}
    assert {case.direction for case in found} == set(get_args(Direction))
    assert {case.plan for case in found} == {"planned", *(overrides(INTERPRETER) if op.kernels else ())}


def test_quick_cases_are_few_and_have_every_value_of_every_trait() -> None:
    found, quick = cases(INTERPRETER, ["rms_norm"]), quick_cases(INTERPRETER, ["rms_norm"])
    assert len(quick) < len(found) / 3
    for trait in ("direction", "dim", "dims", "dtype", "dtypes", "layout", "grad_layout", "values", "absent", "plan"):
        assert {getattr(case, trait) for case in quick} == {getattr(case, trait) for case in found}, trait


def test_both_values_of_a_bool_are_tested(add_op: Callable[[Op], None]) -> None:
    add_op(BY_SUM)
    found = cases(INTERPRETER, ["by_sum"])
    assert {dict(case.numbers).get("divides") for case in found} == {None, False, True}


def test_what_a_backend_does_not_have_is_left_out() -> None:
    backend: Any = OneDtype()
    found = cases(backend)
    dtypes = {dtype for case in found for dtype in (case.dtype, case.out_dtype) if "float" in dtype}
    assert dtypes == {"float32"}
    assert not any(case.stream or case.last_device for case in found)
    with pytest.raises(PlanError, match="unknown op 'sofmax'; did you mean 'softmax'"):
        cases(backend, ["sofmax"])


def test_cases_have_absent_tensors_other_dtypes_and_the_ends_of_ranges() -> None:
    found = cases(INTERPRETER, ["rms_norm"])
    assert {case.absent for case in found} >= {(), ("residual",), ("weight",), ("residual", "weight")}
    assert {dict(case.dtypes).get("weight") for case in found if case.dtype == "bfloat16"} >= {None, "float32"}
    given = {pair for case in found for pair in case.numbers}
    assert given >= {("eps", 1e-12), ("eps", 1e-2), ("weight_offset", -1.0), ("casting", "llama")}
    assert any(name == "eps" and 1e-12 < value < 1e-2 for name, value in given)
    assert {case.dims for case in found} == {1, 2, 3}
    losses = cases(INTERPRETER, ["cross_entropy"])
    for direction in DIRECTIONS:
        given = {pair for case in losses if case.direction == direction for pair in case.numbers}
        assert given >= {("reduction", "none"), ("reduction", "sum"), ("softcap", 1.0), ("return_lse", True)}


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        (number("eps", 1e-6, range=(0.0, 1.0)), 1e-6),
        (number("eps", range=(1e-12, 1e-2)), 1e-2),
        (number("offset", type="float", neutral=0.0, range=(-1.0, 1.0)), 0.0),
        (number("casting", type="str", range=("", "llama")), ""),
        (number("reduction", type="int", range=("none", "mean")), "none"),
        (Argument("softcap", "float", optional=True, range=(1.0, 60.0)), None),
    ],
)
def test_a_number_that_a_case_does_not_give_is_the_default_or_an_end_of_the_range(argument: Any, value: Any) -> None:
    assert ordinary(argument) == value
