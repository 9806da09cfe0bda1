"""Tests the cases of the conformance suite: which traits, dtypes and devices they cover, and their tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch

from conformance_helpers import CPU, INTERPRETER
from several_results import BY_SUM
from tridal import library
from tridal.errors import PlanError
from tridal.ops import table
from tridal.ops.op import Op
from tridal.testing.cases import DIRECTIONS, Direction, Layout, Mask, Values
from tridal.testing.inputs import make_mask, make_values, with_layout
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
    assert {case.op for case in found if case.modified} == {
        o.name for o in library.OPS if o.one_tensor and o.scale_mask
    }
    plans = {"planned", *overrides(INTERPRETER)}
    for op in library.OPS:
        of_op = [case for case in found if case.op == op.name]
        assert {case.direction for case in of_op} == set(get_args(Direction)), op
        assert {case.plan for case in of_op} == (plans if op.kernels else {"planned"}), op


def test_quick_cases_are_few_and_have_every_value_of_every_trait() -> None:
    found, quick = cases(INTERPRETER, ["rms_norm"]), quick_cases(INTERPRETER, ["rms_norm"])
    assert len(quick) < len(found) / 3
    for trait in ("direction", "dim", "dims", "dtype", "dtypes", "layout", "grad_layout", "values", "absent", "plan"):
        assert {getattr(case, trait) for case in quick} == {getattr(case, trait) for case in found}, trait


def test_what_a_backend_does_not_have_is_left_out() -> None:
    backend: Any = OneDtype()
    found = cases(backend)
    dtypes = {dtype for case in found for dtype in (case.dtype, case.out_dtype) if "float" in dtype}
    assert dtypes == {"float32"}
    assert not any(case.stream or case.last_device for case in found)
    with pytest.raises(PlanError, match="unknown op 'sofmax'; did you mean 'softmax'"):
        cases(backend, ["sofmax"])


def test_cases_have_absent_tensors_other_dtypes_and_the_ends_of_ranges(add_op: Callable[[Op], None]) -> None:
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
    add_op(BY_SUM)
    assert {dict(case.numbers).get("divides") for case in cases(INTERPRETER, ["by_sum"])} == {None, False, True}


def test_layouts_have_different_strides_and_equal_values() -> None:
    source = make_values("normal", (3, 10, 7, 9), -1)
    tensors = {layout: with_layout(source, layout, "float64", CPU) for layout in get_args(Layout)}
    assert tensors.pop("expanded").stride()[0] == 0
    assert all(torch.equal(x, source) for x in tensors.values())
    assert [layout for layout, x in tensors.items() if x.is_contiguous()] == ["contiguous"]
    assert len({x.stride() for x in tensors.values()}) == len(tensors)
    assert with_layout(source, "sliced", "float32", CPU).data_ptr() % 16


@pytest.mark.parametrize("kind", get_args(Mask))
def test_a_mask_excludes_some_elements_and_one_row_as_a_whole(kind: Mask) -> None:
    mask = make_mask(kind, (4, 3, 17, 33), CPU)
    excluded = (~mask if mask.dtype is torch.bool else mask == -torch.inf).expand(4, 3, 17, 33)
    assert mask.is_floating_point() == kind.startswith("added")
    assert 0 < excluded.sum() < excluded.numel()
    assert excluded[0, 0, 0].all() == (mask.shape == excluded.shape)
