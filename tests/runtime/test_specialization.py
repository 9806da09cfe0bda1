"""Specializations: they hold everything that a kernel is compiled for, and nothing that changes between like calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_helpers import FakeBackend
from call_helpers import WHOLE_ROW, kernel_call
from tridal.devices.types import (
    ALIGNMENT,
    SCHEDULES,
    DeviceProperties,
    KernelConfig,
    LaunchPlan,
    Resources,
    next_power_of_2,
)
from tridal.errors import PlanError
from tridal.library.glu.glu import SWIGLU
from tridal.library.softmax.softmax import LOG_SOFTMAX, SOFTMAX
from tridal.runtime.plan_check import check_plan
from tridal.runtime.row_layout import RowLayout, row_layout
from tridal.runtime.specialization import KernelCall


def constants(call: KernelCall, config: KernelConfig = WHOLE_ROW) -> dict[str, Any]:
    return dict(call.specialize(config).constants)


def test_specialization_does_not_depend_on_the_number_of_rows() -> None:
    matrix = [kernel_call((rows, 1024)).specialize(WHOLE_ROW) for rows in (64, 65, 1)]
    assert matrix[0] == matrix[1] == matrix[2]
    inner = [kernel_call((rows, 30, 64), 1).specialize(WHOLE_ROW) for rows in (8, 9)]
    assert inner[0] == inner[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (kernel_call((64, 1024)), kernel_call((64, 1000))),  # multiples of 16 and of 8
        (kernel_call((64, 1024)), kernel_call((64, 1024), strides=(1025, 1))),
        (kernel_call((64, 1024)), kernel_call((64, 1024), strides=(2048, 2))),
        (kernel_call((64, 1024)), kernel_call((64, 1024), addresses=(0, 4))),
        (kernel_call((64, 1024)), kernel_call((64, 1024), addresses=(8, 0))),
        (kernel_call((64, 1024)), kernel_call((64, 1024), dtypes=("float32", "bfloat16"))),
        (kernel_call((64, 1024)), kernel_call((64, 1024), dtypes="float64")),
        (kernel_call((64, 1024)), kernel_call((64, 1024), kernel=LOG_SOFTMAX.forward)),
        (kernel_call((64, 1024), 1), kernel_call((1024, 64), 0)),
        (kernel_call((8, 4, 32), 1), kernel_call((8, 4, 33), 1)),  # neighboring rows end at a vector boundary or not
        (kernel_call((64, 1024)), kernel_call((2, 1024), strides=(1 << 31, 1))),
    ],
)
def test_calls_that_need_different_kernels_have_different_specializations(one: KernelCall, other: KernelCall) -> None:
    assert one.specialize(WHOLE_ROW) != other.specialize(WHOLE_ROW)


def test_offsets_have_64_bits_only_if_a_tile_needs_them() -> None:
    tall = kernel_call((70_000, 70_000), 0)
    assert constants(tall, replace(WHOLE_ROW, rows=16, cols=1 << 17))["INT64_OFFSETS"]
    assert not constants(tall, replace(WHOLE_ROW, rows=16, cols=1 << 10))["INT64_OFFSETS"]
    types = dict(kernel_call((2, 1024), strides=(1 << 31, 1)).specialize(WHOLE_ROW).types)
    assert (types["in_inner"], types["out_inner"]) == ("i64", "i32")


NEAR_LIMITS = [(1 << bits) // ways + more for bits in range(28, 33) for ways in (1, 5) for more in (-9, -1, 0, 5)]


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_numbers_that_kernels_compute_fit_in_their_types(data: st.DataObject) -> None:
    """Computes the largest numbers of the kernels of accepted plans, by the expressions in `tridal.kernels`."""
    few, near, draw = st.sampled_from([1, 1, 9]), st.sampled_from(NEAR_LIMITS), data.draw
    outer, inner, cols = draw(st.permutations([draw(few), draw(st.sampled_from([1, 5000, 1 << 16])), draw(near)]))
    schedule, persistent = draw(st.sampled_from(SCHEDULES)), draw(st.booleans())
    tile_cols = next_power_of_2(cols, draw(st.sampled_from([1, 1 << 10, 1 << 14, 1 << 20])))
    rows = next_power_of_2(inner, max(1, draw(st.sampled_from([1, 16, 1 << 20])) // tile_cols))
    per_row = -(-cols // tile_cols) if schedule == "cooperative" else 1
    config = KernelConfig(schedule, rows, tile_cols, 4, draw(st.integers(1, 2)), per_row, persistent=persistent)
    kernel = draw(st.sampled_from([SOFTMAX.forward, SWIGLU.forward]))
    call = KernelCall(
        kernel, RowLayout(outer, inner, cols, ((1, 1, 1), (1, 1, 1))), ("float32",) * len(kernel.pointers)
    )
    tiles = call.tiles(config)
    groups = data.draw(st.sampled_from([1, 2, tiles, 1 + tiles // 2])) if config.persistent else tiles
    backend = FakeBackend("mine", schedules=frozenset(SCHEDULES), features=frozenset({"reload"}))
    device = DeviceProperties("device", "dev1", cores=1, max_programs=1 << 31)
    plan = LaunchPlan(config, groups * per_row if persistent else None, "", occupancy=1 << 31)
    try:
        check_plan(backend, call.problem, device, plan, lambda config: Resources(1, 0, 0))
    except PlanError:
        return
    found = call.specialize(config)
    exchanges, types, static = found.cooperative, dict(found.types), dict(found.constants).get("INT64_TILES")
    numbers = {
        "rank": [per_row * tile_cols - 1],
        "cols": [-(-cols // tile_cols) * tile_cols + tile_cols - 1, cols + 2 * ALIGNMENT],  # the latter of a tail
        "outer": [outer],
        "inner": [inner + rows - 1, tiles],  # `tl.cdiv`
    }
    if config.persistent:
        numbers["inner"] += [tiles - 1 + groups]  # the end of the loop
    if exchanges and config.persistent and config.num_stages == 1 and not static:
        iterations = -(-tiles // groups) * 5 // 4 + 1  # `tile_counter.iterations`
        assert max((iterations - 1) * 4, groups + groups * (iterations - 1)) < 2**31
    for name, values in numbers.items():
        assert types.get(name) == "i64" or max(values) < 2**31, (name, values)


@pytest.mark.parametrize(
    ("call", "misalignment", "same"),
    [
        (kernel_call((64, 1001)), 0, True),
        (kernel_call((64, 1001), addresses=(4, 4)), 1, True),
        (kernel_call((64, 1001), addresses=(0, 8)), 2, False),  # the output has another misalignment
        (kernel_call((64, 1001), strides=(1002, 1)), 0, False),
        (kernel_call((64, 1001), strides=(1005, 1)), 0, True),  # the row strides differ by a whole vector
        (kernel_call((64, 1001), dtypes=("float32", "bfloat16"), addresses=(32, 34)), 1, False),
    ],
)
def test_peel_knows_the_misalignment_and_whether_the_output_has_the_same(
    call: KernelCall, misalignment: int, same: bool
) -> None:
    peel = replace(WHOLE_ROW, peel=True)
    assert not call.problem.aligned
    assert call.scalars(peel)["misalignment"] == misalignment
    assert constants(call, peel)["SAME_MISALIGNMENT"] is same
    assert constants(call)["PEEL"] is constants(call)["SAME_MISALIGNMENT"] is False


@pytest.mark.parametrize(("up", "same"), [(0, True), (4 * 1001, False), (16 * 1001, True)])
def test_a_second_tensor_with_the_strides_of_the_first_has_its_own_misalignment(up: int, same: bool) -> None:
    kernel, peel = SWIGLU.kernels[0].with_strides((("up_ptr", "in"),)), replace(WHOLE_ROW, peel=True)
    layout = row_layout((64, 1001), (2001, 1), 1)
    assert layout is not None
    call = KernelCall(kernel, layout, ("float32",) * 3, (0, 0, up))
    assert constants(call, peel)["SAME_MISALIGNMENT"] is same
    assert "up_ptr" not in call.specialize(peel).divisible or up % 16 == 0
