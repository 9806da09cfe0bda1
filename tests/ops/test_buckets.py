"""Buckets of rows: how rows are rounded, and the numbers of each launch of a bucket."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from call_helpers import kernel_call
from golden_plans import invented_resources
from tridal.devices.types import (
    MAX_32_BIT_ELEMENTS,
    MAX_32_BIT_ROWS,
    KernelConfig,
    LaunchPlan,
    round_rows,
    row_bucket,
)
from tridal.ops import planning
from tridal.runtime import launch
from tridal.runtime.row_layout import RowLayout
from tridal.runtime.scale_mask import ScaleMask
from tridal.runtime.specialization import KernelCall

pytest.importorskip("triton")

OPS = ("softmax", "softmax_backward", "rms_norm", "rms_norm_backward", "layer_norm_backward", "swiglu")
ROWS = st.integers(1, 40) | st.integers(1, 5000) | st.integers(1, 2**40)
NEAR = st.sampled_from([1, 3, 781, 50_257, 2**20, 2**31]) | st.integers(1, 2**32)


# -- how rows are rounded


@given(ROWS)
def test_rows_are_rounded_up_to_five_significant_bits_and_then_to_four(rows: int) -> None:
    rounded = round_rows(rows)
    bits = len(f"{rounded:b}".rstrip("0"))
    assert rows <= rounded
    assert round_rows(rounded) == rounded
    if rows <= 32:
        assert rounded == rows
    elif rows <= 2048:
        assert bits <= 5
        assert rounded - rows < rows / 16
    else:
        assert bits <= 4
        assert rounded - rows < rows / 8


@given(ROWS, NEAR)
def test_buckets_follow_each_other_and_cross_no_limit(rows: int, cols: int) -> None:
    first, last = row_bucket(rows, cols)
    assert first <= rows <= last <= round_rows(rows) == round_rows(first)
    assert row_bucket(first, cols) == row_bucket(last, cols) == (first, last)
    assert row_bucket(last + 1, cols)[0] == last + 1
    for size, limit in ((1, MAX_32_BIT_ROWS), (cols, MAX_32_BIT_ELEMENTS)):
        assert (first * size > limit) == (last * size > limit)


@given(st.integers(1, 5000), ROWS, NEAR, st.sampled_from([1, 7]))
def test_the_rounded_numbers_of_blocks_and_rows_cross_no_limit(outer: int, inner: int, cols: int, col: int) -> None:
    layout = RowLayout(outer, inner, cols, ((inner * cols, cols, col),) * 2)
    blocks, rows = layout.rounded
    assert outer <= blocks <= round_rows(outer)
    assert inner <= rows <= round_rows(inner)
    for size, limit in ((1, MAX_32_BIT_ROWS), (cols, MAX_32_BIT_ELEMENTS)):
        assert (outer * inner * size > limit) == (blocks * rows * size > limit)


@pytest.mark.parametrize(
    ("call", "planned", "row_range"),
    [
        (kernel_call((1000, 781)), (1, 1024), (993, 1024)),
        (kernel_call((4100, 781)), (1, 4608), (4097, 4608)),
        (kernel_call((33, 300, 50), 1), (34, 50), (1650, 1650)),  # `inner` is the stride between columns
        (kernel_call((300, 1000), 0), (1, 1000), (1000, 1000)),
        (kernel_call((42_000, 50_257)), (1, 42_730), (40_961, 42_730)),  # 2**31 elements
        (kernel_call((4, 16, 1024)), (1, 64), (63, 64)),
        (kernel_call((3000, 1024), strides=(2048, 2)), (1, 3072), (2817, 3072)),
        (kernel_call((66, 1024), scale_mask=ScaleMask(scale=0.5)), (1, 68), (65, 68)),
        (kernel_call((66, 1024), scale_mask=ScaleMask(causal=True, queries=66)), (1, 68), (66, 66)),
        (kernel_call((66, 1024), scale_mask=ScaleMask(mask="uint8", strides=(0, 0, 0, 1))), (1, 68), (66, 66)),
        (kernel_call((1, 1024)), (1, 1), (1, 1)),
    ],
)
def test_a_call_serves_the_rows_of_its_problem(
    call: KernelCall, planned: tuple[int, int], row_range: tuple[int, int]
) -> None:
    assert (call.problem.outer, call.problem.inner) == planned
    numbers = launch._unbound(call, LaunchPlan(KernelConfig("whole_row", 4, 1024), 7, ""))
    assert call.row_range == numbers.row_range == row_range
    of_one_row: dict[str, Any] = {"cols": int} if call.layout.rows == 1 else {}  # several numbers of columns
    assert numbers.varying == (of_one_row if row_range[0] == row_range[1] else {"inner": int})
    if row_range[0] == row_range[1]:
        assert numbers.programs(10**6) == numbers.programs(1), "the numbers are those of the call for any argument"


CONFIGS = (
    KernelConfig("whole_row", 2, 1024), KernelConfig("whole_row", 4, 1024, persistent=False),
    KernelConfig("whole_row", 2, 1024, peel=True), KernelConfig("column_loop", 4, 256),
    KernelConfig("cooperative", 1, 256, programs_per_row=4),
    KernelConfig("cooperative", 1, 256, programs_per_row=4, persistent=False),
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(OPS), st.sampled_from(CONFIGS), st.sampled_from([781, 1000, 1024]), st.booleans(),
    st.integers(1, 500), st.integers(2, 5000), st.data(),
)  # fmt: skip
def test_numbers_of_a_launch_are_those_of_a_call_with_these_rows(
    op: str, config: KernelConfig, cols: int, invariant: bool, groups: int, rows: int, data: st.DataObject
) -> None:
    def call_of(rows: int) -> KernelCall:
        call = planning.matrix_call(rows, cols, op=op)
        return replace(call, invariant=invariant)

    call = call_of(rows)
    other = data.draw(st.integers(*call.row_range))
    same = call_of(other)
    assert same.problem == call.problem
    assert same.specialize(config) == call.specialize(config)
    plan = LaunchPlan(config, groups * config.programs_per_row if config.persistent else None, "")
    numbers = launch._unbound(call, plan)
    tiles = -(-other // config.rows)
    programs = min(tiles, groups) if config.persistent else tiles
    assert numbers.groups(other) == programs
    assert numbers.programs(other) == same.programs(plan) == programs * config.programs_per_row
    assert numbers.workspace_slots(other) == same.workspace_slots(plan)
    changed = {name: count(other) for name, count in numbers.varying.items()}
    assert call.scalars(config) | changed == same.scalars(config)


@pytest.mark.parametrize("arch", planning.example_architectures())
@pytest.mark.parametrize("cols", [781, 4096, 262_144])
def test_plans_of_a_backend_change_between_buckets_only(arch: str, cols: int) -> None:
    """Also, an accepted plan states the most programs of a launch, whose number grows with the rows."""
    backend, device = planning.architectures()[arch]
    options = {name: option.default for name, option in backend.options.items()}
    for op in OPS:
        calls = {rows: planning.matrix_call(rows, cols, "bfloat16", op) for rows in (65, 66, 68, 2817, 3001, 3072)}
        plans = {rows: backend.plan(call.problem, device, invented_resources, options) for rows, call in calls.items()}
        assert plans[65] == plans[66] == plans[68]
        assert plans[2817] == plans[3001] == plans[3072]
        for fewer, more in (*pairwise((65, 66, 68)), *pairwise((2817, 3001, 3072))):
            assert calls[fewer].specialize(plans[more].config) == calls[more].specialize(plans[more].config)
            assert calls[fewer].programs(plans[more]) <= calls[more].programs(plans[more])
