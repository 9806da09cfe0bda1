"""Prepared launches for a range of row counts: the range, the numbers of each launch, and the results."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from call_helpers import kernel_call
from tridal.devices import registry
from tridal.devices.types import FEATURES, MAX_RANGE_ROWS, KernelConfig, LaunchPlan, Problem
from tridal.ops import planning
from tridal.runtime import launch
from tridal.runtime.batch_invariance import made_invariant
from tridal.runtime.row_layout import row_layout
from tridal.runtime.row_numbers import RowNumbers
from tridal.runtime.scale_mask import ScaleMask
from tridal.runtime.specialization import KernelCall

pytest.importorskip("triton")

import row_tensors
from test_row_tensors import EPS, dtypes, expected, make

INTERPRETER = registry.get("interpreter")
OPTIONS = {name: option.default for name, option in INTERPRETER.options.items()}
CONFIGS = {
    "whole_row": KernelConfig("whole_row", 2, 1024),
    "one_tile_each": KernelConfig("whole_row", 4, 1024, persistent=False),
    "peel": KernelConfig("whole_row", 2, 1024, peel=True),
    "column_loop": KernelConfig("column_loop", 4, 256),
    "cooperative": KernelConfig("cooperative", 1, 256, programs_per_row=4),
    "one_shot": KernelConfig("cooperative", 1, 256, programs_per_row=4, persistent=False),
}


def matrix_call(op: str, rows: int, cols: int, invariant: bool = False) -> KernelCall:
    """Returns the call of a kernel for a contiguous matrix."""
    call = planning.matrix_call(rows, cols, op=op)
    return made_invariant(INTERPRETER, call)[1] if invariant else call


def ranged(call: KernelCall, config: KernelConfig, tiles_per_group: int) -> LaunchPlan:
    """Returns a plan for the rows from 1000 on, of which this call has at least as many."""
    plan = LaunchPlan(config, 1, "", row_range=(1000, MAX_RANGE_ROWS), tiles_per_group=tiles_per_group)
    return replace(plan, programs=plan.programs_for(call.problem, call.problem.rows))


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["softmax", "softmax_backward", "rms_norm", "rms_norm_backward", "layer_norm_backward"]),
    st.sampled_from(sorted(CONFIGS)),
    st.sampled_from([781, 1000, 1024]),
    st.booleans(),
    st.sampled_from([1, 3, 4]),
    st.integers(1000, 5000),
    st.sampled_from([1000, 1001, 1008, 4096, 30_000, MAX_RANGE_ROWS]),
)
def test_numbers_of_a_launch_are_those_of_a_call_with_these_rows(
    op: str, name: str, cols: int, invariant: bool, tiles_per_group: int, rows: int, other: int
) -> None:
    call, config = matrix_call(op, rows, cols, invariant), CONFIGS[name]
    if name == "one_tile_each" and call.problem.column_writes:
        return  # each tile would store its sums
    plan = ranged(call, config, tiles_per_group if config.persistent else 1)
    numbers = RowNumbers(call, plan)
    assert numbers.row_range == (1000, MAX_RANGE_ROWS)
    expected = matrix_call(op, other, cols, invariant)
    assert call.with_rows(other) == expected
    assert call.with_rows(other).problem == expected.problem
    assert call.specialize(config) == expected.specialize(config)
    launched = ranged(expected, config, plan.tiles_per_group or 1)
    assert numbers.programs(other) == launched.programs
    assert numbers.groups(other) == launched.groups
    assert numbers.workspace_slots(other) == expected.workspace_slots(launched)
    changed = {name: count(other) for name, count in numbers.scalars.items()}
    assert call.scalars(config) | changed == expected.scalars(config)


@pytest.mark.parametrize(
    ("call", "row_range"),
    [
        (kernel_call((64, 1024)), (1, 1000)),
        (kernel_call((4, 16, 1024)), (1, 1000)),
        (kernel_call((64, 1024), strides=(2048, 2)), (1, 1000)),
        (kernel_call((64, 1024), strides=(0, 1)), (1, 1000)),
        (kernel_call((64, 1024), scale_mask=ScaleMask(scale=0.5)), (1, 1000)),
        (kernel_call((64, 1024), scale_mask=ScaleMask(causal=True, queries=64)), (64, 64)),
        (kernel_call((64, 1024), scale_mask=ScaleMask(mask="uint8", strides=(0, 0, 0, 1))), (64, 64)),
        (kernel_call((1, 1024)), (1, 1)),
    ],
)
def test_range_of_a_call(call: KernelCall, row_range: tuple[int, int]) -> None:
    plan = LaunchPlan(KernelConfig("whole_row", 4, 1024), 1, "", row_range=(1, 1000))
    numbers = RowNumbers(call, plan)
    assert numbers.row_range == row_range
    assert numbers.varies == (row_range == (1, 1000))
    without = RowNumbers(call, replace(plan, row_range=None))
    assert without.row_range == (call.problem.rows,) * 2
    assert (without.programs(5), without.scalars) == (1, {})


@pytest.mark.parametrize(
    ("cols", "column_range", "found"),
    [
        (1000, (513, 1024), (513, 1023)),
        (1008, (513, 1024), (528, 1024)),
        (1000, (1000, 1000), None),
        (1008, (1000, 1010), None),
        (1000, (513, 2**31 + 1), None),
        (1000, None, None),
    ],
)
def test_column_range_of_a_call_of_one_row(
    cols: int, column_range: tuple[int, int] | None, found: tuple[int, int] | None
) -> None:
    """All columns of a range have the specialization of the call, also the divisibility of their number by 16."""
    plan = LaunchPlan(KernelConfig("whole_row", 1, 1024), 1, "", column_range=column_range)
    call = kernel_call((1, cols))
    numbers = RowNumbers(call, plan)
    assert numbers.column_range == found
    assert numbers.scalars == ({"cols": int} if found else {})
    assert RowNumbers(kernel_call((2, cols)), plan).column_range is None
    for end in found or ():
        assert call.with_cols(end).specialize(plan.config) == call.specialize(plan.config)


def test_a_range_of_one_row_count_has_the_numbers_of_the_plan() -> None:
    call = kernel_call((3, 5000, 40), 1)
    config = KernelConfig("cooperative", 16, 1024, programs_per_row=5)
    plan = LaunchPlan(config, 10, "")
    numbers = RowNumbers(call, plan)
    assert numbers.row_range == (120, 120)
    assert (numbers.programs(7), numbers.groups(7)) == (10, 2)
    assert numbers.workspace_slots(7) == call.workspace_slots(plan)


def test_a_range_whose_ends_have_another_specialization_is_not_used() -> None:
    """A plan is checked, so this takes a plan that was not."""
    plan = LaunchPlan(KernelConfig("whole_row", 4, 1024), 1, "", row_range=(1, 2**31))
    assert kernel_call((64, 1024)).row_range(plan) == (64, 64)


# -- results in the interpreter


class Planning:
    """The interpreter with another plan."""

    features = frozenset(FEATURES)

    def __init__(self, config: KernelConfig, tiles_per_group: int | None, programs: int) -> None:
        self._plan = LaunchPlan(config, programs, "", row_range=(1, 1000), tiles_per_group=tiles_per_group)

    def __getattr__(self, member: str) -> Any:
        return getattr(INTERPRETER, member)

    def plan(self, problem: Problem, *_: Any) -> LaunchPlan:
        return replace(self._plan, programs=self._plan.programs_for(problem, problem.rows))


@pytest.mark.parametrize(
    ("config", "tiles_per_group", "programs"),
    [
        (KernelConfig("whole_row", 4, 128), None, 3),
        (KernelConfig("whole_row", 4, 128), 1, 3),
        (KernelConfig("whole_row", 2, 128, peel=True), None, 8),
        (KernelConfig("whole_row", 4, 128, persistent=False), None, 3),
        (KernelConfig("column_loop", 4, 32), None, 3),
    ],
)
def test_one_prepared_launch_computes_all_rows_in_its_range(
    config: KernelConfig, tiles_per_group: int | None, programs: int
) -> None:
    """The gradient of layer_norm has sums over rows, so it also shows the number of groups."""
    if INTERPRETER.unavailable():
        pytest.skip("needs the interpreter")
    sums = config.persistent and not config.peel
    cols, kernel = 77, row_tensors.LAYER_NORM_BACKWARD if sums else row_tensors.LAYER_NORM
    layout = row_layout((40, cols), (cols, 1), 1)
    assert layout is not None
    call = KernelCall(kernel, layout, dtypes(kernel), (), (EPS,) * len(kernel.parameters))
    backend: Any = Planning(config, tiles_per_group, programs)
    prepared = launch.prepare(call, backend, INTERPRETER.properties(0), OPTIONS)
    assert prepared.row_range == (1, 1000)
    for rows in (1, 7, 61):
        tensors = make(kernel, (rows, cols), 1, 0, torch.device("cpu"))
        written = [torch.full((rows, cols), math.nan) for _ in kernel.writes]
        written += [torch.full((rows, 1), math.nan) for _ in kernel.row_writes]
        written += [torch.full((prepared.groups(rows), cols), math.nan) for _ in kernel.column_writes]
        prepared.launch(0, rows, *written, *tensors.values())
        for index in range(-len(kernel.column_writes), 0):
            written[index] = written[index].double().sum(0)
        for found, wanted in zip(written, expected(kernel, tensors, 1), strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=2e-5, atol=2e-5)
