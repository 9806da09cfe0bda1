"""Plan checks: each wrong field is an error with the field, its value and the allowed values."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from tridal.devices.types import FEATURES, SCHEDULES, DeviceProperties, KernelConfig, LaunchPlan, Problem, Resources
from tridal.errors import PlanError
from tridal.runtime.plan_check import check_plan

DEVICE = DeviceProperties(
    "device", "dev1", cores=10, warp_size=32, registers=65_536, shared_memory=100_000, max_threads=2048, max_programs=16
)
PROBLEM = Problem(cols=781, inner=1823)
WHOLE_ROW = LaunchPlan(KernelConfig("whole_row", 4, 1024), 20, "because")
COLUMN_LOOP = LaunchPlan(KernelConfig("column_loop", 1, 256), 20, "because")
COOPERATIVE = LaunchPlan(KernelConfig("cooperative", 1, 256, programs_per_row=4), 40, "because")
OVERLAPPED = replace(COOPERATIVE, config=replace(COOPERATIVE.config, reload=True, overlap=True))
ALL = frozenset({*SCHEDULES, *FEATURES})


def check(
    plan: LaunchPlan,
    problem: Problem = PROBLEM,
    device: DeviceProperties = DEVICE,
    declared: frozenset[str] = ALL,
    resources: tuple[int, int, int] = (32, 0, 0),
    interpreted: bool = False,
) -> None:
    schedules, features = declared & {*SCHEDULES}, declared & {*FEATURES}
    backend: Any = SimpleNamespace(name="mine", schedules=schedules, features=features, interpreted=interpreted)
    check_plan(backend, problem, device, plan, lambda config: Resources(*resources))


def changed(plan: LaunchPlan, **fields: Any) -> LaunchPlan:
    """Returns the plan with other fields. Fields of the configuration are recognised by their names."""
    config = {key: value for key, value in fields.items() if hasattr(plan.config, key)}
    rest = {key: value for key, value in fields.items() if key not in config}
    return replace(plan, config=replace(plan.config, **config), **rest)


def problem_of(plan: LaunchPlan, **arguments: Any) -> str:
    """Returns the part of the error between the name of the backend and the problem."""
    with pytest.raises(PlanError) as raised:
        check(plan, **arguments)
    message = str(raised.value)
    start, _, rest = message.partition(" made a wrong plan: ")
    problem, _, traits = rest.partition("; for Problem(")
    assert start == "backend 'mine'"
    assert traits.startswith("cols=")
    return problem


@pytest.mark.parametrize("plan", [WHOLE_ROW, COLUMN_LOOP, COOPERATIVE, OVERLAPPED])
def test_correct_plan_passes(plan: LaunchPlan) -> None:
    check(plan)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rows": 0}, "rows = 0, expected a power of two"),
        ({"rows": 3}, "rows = 3, expected a power of two"),
        ({"rows": -4}, "rows = -4, expected a power of two"),
        ({"cols": 1000}, "cols = 1000, expected a power of two"),
        ({"cols": 1024.0}, "cols = 1024.0, expected a power of two"),
        ({"cols": numpy.int64(1024)}, f"cols = {numpy.int64(1024)!r}, expected a power of two"),
        ({"rows": True}, "rows = True, expected a power of two"),
        ({"num_warps": 3}, "num_warps = 3, expected a power of two"),
        ({"num_warps": None}, "num_warps = None, expected a power of two"),
        ({"num_stages": 0}, "num_stages = 0, expected an integer from 1 to 32"),
        ({"num_stages": "2"}, "num_stages = '2', expected an integer from 1 to 32"),
        ({"programs_per_row": 0}, "programs_per_row = 0, expected a positive integer"),
        ({"max_registers": 0}, "max_registers = 0, expected a positive integer or None"),
        ({"max_registers": 31.5}, "max_registers = 31.5, expected a positive integer or None"),
        ({"peel": 1}, "peel = 1, expected True or False"),
        ({"reload": None}, "reload = None, expected True or False"),
        ({"overlap": "yes"}, "overlap = 'yes', expected True or False"),
        ({"reload": True, "overlap": True}, "overlap = True, expected False, because only programs that exchange the"),
        ({"persistent": "no"}, "persistent = 'no', expected True or False"),
        ({"exp2_bias": float("nan")}, "exp2_bias = nan, expected a float from -1e-05 to 1e-05 or None"),
        ({"exp2_bias": float("inf")}, "exp2_bias = inf, expected a float from -1e-05 to 1e-05 or None"),
        ({"exp2_bias": 0.5}, "exp2_bias = 0.5, expected a float from -1e-05 to 1e-05 or None"),
        ({"exp2_bias": 0}, "exp2_bias = 0, expected a float from -1e-05 to 1e-05 or None"),
        ({"programs": 0}, "programs = 0, expected an integer from 1 to 2147483647"),
        ({"programs": 2.0}, "programs = 2.0, expected an integer from 1 to 2147483647"),
        ({"programs": 1 << 31}, "programs = 2147483648, expected an integer from 1 to 2147483647"),
        ({"programs": 65_537}, "programs = 65537, expected at most 65536, because there are 456 tiles"),
        ({"num_stages": 33}, "num_stages = 33, expected an integer from 1 to 32"),
        ({"occupancy": 0}, "occupancy = 0, expected a positive integer or None"),
        ({"resources": (1, 2, 3)}, "resources = (1, 2, 3), expected Resources or None"),
        ({"reason": None}, "reason = None, expected text"),
        ({"cols": 512}, "cols = 512, expected at least 781, because a tile holds whole rows"),
        ({"rows": 2048}, "rows x cols = 2097152, expected at most 1048576, Triton's limit of a tensor in a kernel"),
        ({"programs_per_row": 2}, "programs_per_row = 2, expected 1, because the schedule is 'whole_row', not"),
        ({"persistent": False}, "programs = 20, expected 456, because they are not persistent and there are 456 tiles"),
    ],
    ids=str,
)
def test_wrong_field_of_a_plan_is_named_with_its_value_and_the_allowed_values(
    fields: dict[str, Any], expected: str
) -> None:
    assert problem_of(changed(WHOLE_ROW, **fields)).startswith(expected)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"programs": 97}, "programs = 97, expected a multiple of 4, the programs of a row, which wait for each other"),
        (
            {"programs_per_row": 3, "programs": 39},
            "programs_per_row = 3, expected at least 4, because each program com",
        ),
        ({"programs_per_row": 5}, "programs_per_row = 5, expected at most 4, so that each program has columns to comp"),
        ({"programs": 164}, "programs = 164, expected at most 160, which are resident at the same time on 10 cores"),
        ({"programs": 80, "occupancy": 4}, "programs = 80, expected at most 40, which are resident at the same time"),
        (
            {"num_warps": 64},
            "programs = 40, expected at most 10, which are resident at the same time on 10 cores with 1",
        ),
        (
            {"num_warps": 128},
            "programs = 40, expected at most 0, which are resident at the same time on 10 cores with 0",
        ),
        (
            {"rows": 2, "persistent": False},
            "rows = 2, expected 1, because cooperative programs exchange one row at a time",
        ),
        (
            {"rows": 2, "peel": True},
            "rows = 2, expected 1, because cooperative programs exchange one row at a time with",
        ),
    ],
    ids=str,
)
def test_programs_that_wait_for_each_other_are_complete_and_resident(fields: dict[str, Any], expected: str) -> None:
    assert problem_of(changed(COOPERATIVE, **fields)).startswith(expected)


def test_more_groups_than_tiles_are_refused() -> None:
    message = problem_of(COOPERATIVE, problem=Problem(cols=781, inner=2))
    assert message == "programs = 40, expected at most 8: 4 for each of 2 tiles"


def test_slots_of_an_exchange_have_the_size_of_a_tensor_in_a_kernel_at_most() -> None:
    problem = Problem(cols=1 << 20, inner=1 << 20, layout="inner")
    plan = changed(COOPERATIVE, rows=4096, cols=256, programs_per_row=4096, programs=4096)
    assert problem_of(plan, problem=problem).startswith("2 x rows x programs_per_row = 33554432, expected at most 1048")


@pytest.mark.parametrize(
    ("resources", "device", "limit"),
    [
        ((255, 0, 0), {}, "20, which are resident at the same time on 10 cores with 2 each (limited by registers)"),
        (
            (32, 0, 60_000),
            {},
            "10, which are resident at the same time on 10 cores with 1 each (limited by shared_memory)",
        ),
        ((32, 0, 0), {"max_threads": 256}, "20, which are resident at the same time on 10 cores with 2 each"),
        ((32, 0, 0), {"max_programs": 3}, "30, which are resident at the same time on 10 cores with 3 each"),
        ((32, 0, 0), {"cores": 2}, "32, which are resident at the same time on 2 cores with 16 each"),
    ],
)
def test_occupancy_follows_from_the_compiled_kernel_and_the_device(
    resources: tuple[int, int, int], device: dict[str, int], limit: str
) -> None:
    """A larger claim of the plan does not count."""
    plan = changed(COOPERATIVE, occupancy=16)
    message = problem_of(plan, resources=resources, device=replace(DEVICE, **device))
    assert message.startswith(f"programs = 40, expected at most {limit}")


def test_unknown_properties_need_an_occupancy() -> None:
    unknown = DeviceProperties("new device", "new1", cores=10, warp_size=32, max_programs=2)
    expected = "an integer, because new device does not report registers, shared_memory, max_threads"
    assert problem_of(COOPERATIVE, device=unknown) == f"occupancy = None, expected {expected}"
    check(changed(COOPERATIVE, occupancy=4, programs=20), device=unknown)
    message = problem_of(changed(COOPERATIVE, occupancy=4), device=unknown)
    assert message.endswith("on 10 cores with 2 each (limited by max_programs)")


@pytest.mark.parametrize(
    ("plan", "missing", "expected"),
    [
        (
            COOPERATIVE,
            "cooperative",
            "schedule = 'cooperative', expected one of the backend's `schedules`: column_loop,",
        ),
        (changed(WHOLE_ROW, peel=True), "peel", "peel = True, expected False, because the backend's `features` lack"),
        (changed(WHOLE_ROW, reload=True), "reload", "reload = True, expected False, because the backend's `features`"),
        (OVERLAPPED, "overlap", "overlap = True, expected False, because the backend's `features`"),
    ],
    ids=["cooperative", "peel", "reload", "overlap"],
)
def test_undeclared_schedule_or_feature_is_refused(plan: LaunchPlan, missing: str, expected: str) -> None:
    check(plan)
    assert problem_of(plan, declared=ALL - {missing}).startswith(expected)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rows": 2}, "only programs that exchange the statistics of one row overlap rows"),
        ({"cols": 1024, "programs_per_row": 1}, "only programs that exchange the statistics of one row overlap rows"),
        ({"reload": False}, "it needs `reload` and `persistent`, without `peel` and a pipeline"),
        ({"persistent": False}, "it needs `reload` and `persistent`, without `peel` and a pipeline"),
        ({"peel": True}, "it needs `reload` and `persistent`, without `peel` and a pipeline"),
        ({"num_stages": 2}, "it needs `reload` and `persistent`, without `peel` and a pipeline"),
    ],
    ids=str,
)
def test_other_programs_do_not_overlap(fields: dict[str, Any], expected: str) -> None:
    plan = changed(OVERLAPPED, **fields)
    assert problem_of(plan) == f"overlap = True, expected False, because {expected}"


def test_column_loop_does_not_reload() -> None:
    expected = "reload = True, expected False, because 'column_loop' does not support it"
    assert problem_of(changed(COLUMN_LOOP, reload=True)) == expected


def test_column_loop_peels_only_for_statistics() -> None:
    peeled = changed(COLUMN_LOOP, peel=True)
    expected = (
        "peel = True, expected False, because 'column_loop' peels rows only for statistics of elements without a mask"
    )
    assert problem_of(peeled) == expected
    assert problem_of(peeled, problem=replace(PROBLEM, writes=(), scale_mask=True)) == expected
    check(peeled, problem=replace(PROBLEM, writes=(), row_writes=("float32",)))


@pytest.mark.parametrize(
    ("plan", "problem", "expected"),
    [
        (changed(COLUMN_LOOP, lanes=3), PROBLEM, "lanes = 3, expected a power of two"),
        (changed(WHOLE_ROW, lanes=2), PROBLEM, 'lanes = 2, expected 1, because only "column_loop" splits a row'),
        (changed(COLUMN_LOOP, rows=2, lanes=2), PROBLEM, 'lanes = 2, expected 1, because only'),
        (
            changed(COLUMN_LOOP, lanes=2),
            replace(PROBLEM, layout="inner"),
            'lanes = 2, expected 1, because only "column_loop" splits a row',
        ),
        (changed(COLUMN_LOOP, cols=16, lanes=8), PROBLEM, "lanes = 8, expected a divisor of cols / 4"),
    ],
)  # fmt: skip
def test_lanes_divide_one_row_into_vectors(plan: Any, problem: Problem, expected: str) -> None:
    assert problem_of(plan, problem=problem).startswith(expected)


@pytest.mark.parametrize("layout", ["inner", "strided"])
def test_peel_needs_contiguous_rows(layout: Any) -> None:
    message = problem_of(changed(WHOLE_ROW, peel=True), problem=replace(PROBLEM, layout=layout))
    assert message.startswith('peel = True, expected False, because only the layout "row" has aligned vectors')


def test_a_peeled_tile_may_omit_the_head_and_the_tail() -> None:
    peeled = changed(WHOLE_ROW, peel=True)
    check(peeled, problem=Problem(cols=1027, inner=8))
    assert problem_of(peeled, problem=Problem(cols=1028, inner=8)).startswith("cols = 1024, expected at least 1028")
    halves = Problem(cols=1031, inner=8, reads=("bfloat16",))  # a vector has 8 elements of 16 bits
    check(peeled, problem=halves)


@pytest.mark.parametrize("field", ["reads", "writes"])
def test_float64_is_computed_without_exchange_and_without_exp2(field: Any) -> None:
    problem = replace(PROBLEM, **{field: ("float64",)})
    assert problem_of(COOPERATIVE, problem=problem).startswith(
        "schedule = 'cooperative', expected another one: programs"
    )
    assert problem_of(changed(WHOLE_ROW, exp2_bias=0.0), problem=problem).startswith("exp2_bias = 0.0, expected None")


def test_interpreter_cannot_run_programs_that_wait_for_each_other() -> None:
    message = problem_of(COOPERATIVE, interpreted=True)
    assert message.endswith("another one: the interpreter runs programs one after another")


def test_error_has_the_distribution_of_the_backend_and_all_traits() -> None:
    backend: Any = SimpleNamespace(label="backend 'x' (x-tridal 1.0)", schedules=ALL, features=ALL, interpreted=False)
    with pytest.raises(PlanError) as raised:
        check_plan(backend, PROBLEM, DEVICE, changed(WHOLE_ROW, rows=0), lambda config: Resources(1, 0, 0))
    assert str(raised.value).startswith(
        "backend 'x' (x-tridal 1.0) made a wrong plan: rows = 0, expected a power of two"
    )
    assert "cols=781, inner=1823, outer=1, reads=('float32',)" in str(raised.value)
