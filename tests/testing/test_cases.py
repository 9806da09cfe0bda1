"""Tests the cases of the conformance suite: their names, and which ops, dtypes and devices they cover."""

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


ONE_DTYPE: Any = OneDtype()


def test_names_are_unique() -> None:
    names = [case.name for case in cases(INTERPRETER)]
    assert len(set(names)) == len(names)


def test_every_op_has_enough_cases_in_both_directions_with_every_override() -> None:
    for op in library.OPS:
        found = cases(INTERPRETER, [op.name])
        assert len(found) > (100 if op.kernels else 40)
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


def test_cases_cover_every_op_layout_value_and_mask() -> None:
    found = cases(INTERPRETER)
    assert {case.op for case in found} == set(table.ops())
    assert {case.layout for case in found} == set(get_args(Layout))
    assert {case.values for case in found} == set(get_args(Values))
    assert {case.mask for case in found} == {None, *get_args(Mask)}


def test_dtypes_that_a_backend_does_not_compute_are_left_out() -> None:
    dtypes = {dtype for case in cases(ONE_DTYPE) for dtype in (case.dtype, case.out_dtype) if "float" in dtype}
    assert dtypes == {"float32"}
    assert {case.dtype for case in cases(ONE_DTYPE)} - {"int64", "uint8", "bool"} == {"float32"}


def test_streams_and_second_devices_that_a_backend_does_not_have_are_left_out() -> None:
    assert not any(case.stream for case in cases(ONE_DTYPE))
    assert not any(case.last_device for case in cases(ONE_DTYPE))


def test_only_ops_with_a_scale_and_a_mask_have_modified_cases() -> None:
    modified = {case.op for case in cases(INTERPRETER) if case.modified}
    assert modified == {name for name, op in table.one_tensor_ops().items() if op.scale_mask}


def test_ops_argument_restricts_the_cases() -> None:
    assert {case.op for case in cases(INTERPRETER, ["log_softmax"])} == {"log_softmax"}
    chosen = [case for case in cases(INTERPRETER) if case.op == "log_softmax"]
    assert list(cases(INTERPRETER, ["log_softmax"])) == chosen
    assert {case.direction for case in chosen} >= set(DIRECTIONS)


def test_unknown_op_suggests_a_similar_name() -> None:
    with pytest.raises(PlanError, match="unknown op 'sofmax'; did you mean 'softmax'"):
        cases(INTERPRETER, ["sofmax"])


def test_ops_of_several_tensors_have_cases_of_tensors_dtypes_and_numbers() -> None:
    found = cases(INTERPRETER, ["rms_norm"])
    assert {case.absent for case in found} >= {(), ("residual",), ("weight",), ("residual", "weight")}
    assert {dict(case.dtypes).get("weight", case.dtype) for case in found if case.dtype == "bfloat16"} >= {
        "bfloat16", "float32",
    }  # fmt: skip
    given = {pair for case in found for pair in case.numbers}
    assert given >= {("eps", 1e-12), ("eps", 1e-2), ("weight_offset", -1.0), ("casting", "llama")}
    assert any(name == "eps" and 1e-12 < value < 1e-2 for name, value in given)
    assert {case.dims for case in found} == {1, 2, 3}


def test_losses_have_cases_of_choices_and_the_ends_of_their_ranges() -> None:
    found = cases(INTERPRETER, ["cross_entropy"])
    for direction in DIRECTIONS:
        for plan in ("planned", *overrides(INTERPRETER)):
            chosen = [case for case in found if (case.direction, case.plan) == (direction, plan)]
            assert {case.absent for case in chosen} == {(), ("weight",)}
        given = {pair for case in found if case.direction == direction for pair in case.numbers}
        assert given >= {
            ("reduction", "none"), ("reduction", "mean"), ("reduction", "sum"), ("label_smoothing", 1.0),
            ("z_loss", 0.1), ("softcap", 1.0), ("softcap", 60.0), ("return_lse", True), ("ignore_index", -200),
        }  # fmt: skip
    assert {case.dim % len(case.shape) for case in found if len(case.shape) > 1} == {1}, "torch's dim of classes"


def test_a_number_that_a_case_does_not_give_is_the_default_or_the_upper_end() -> None:
    assert ordinary(number("eps", 1e-6, range=(0.0, 1.0))) == 1e-6
    assert ordinary(number("eps", range=(1e-12, 1e-2))) == 1e-2
    assert ordinary(number("offset", type="float", neutral=0.0, range=(-1.0, 1.0))) == 0.0
    assert ordinary(number("casting", type="str", range=("", "llama"))) == ""
    assert ordinary(number("reduction", type="int", range=("none", "mean"))) == "none"
    assert ordinary(Argument("softcap", "float", optional=True, range=(1.0, 60.0))) is None
