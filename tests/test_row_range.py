"""Row ranges: what a planning function reads of the rows narrows the range, and bundled plans hold in their range."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan_invariants import compiler
from tridal.devices import registry
from tridal.devices.types import (
    MAX_RANGE_ROWS,
    Backend,
    DeviceProperties,
    KernelConfig,
    LaunchPlan,
    Problem,
    next_power_of_2,
    with_row_range,
)
from tridal.runtime.batch_invariance import invariant

ARCHITECTURES = {
    "sm_80": "cuda", "sm_90": "cuda", "gfx942": "rocm", "gfx1100": "rocm", "ascend910b": "npu", "ascend950": "npu",
    "interpreter": "interpreter",
}  # fmt: skip
"""The backend of each architecture whose plans are tested."""


def read(question: Callable[[Any], Any], rows: int) -> tuple[Any, tuple[int, int] | None]:
    """Returns question(the row count), and the range of a plan that asks it."""
    answers = []

    @with_row_range
    def plan(problem: Problem) -> LaunchPlan:
        answers.append(question(problem.inner))
        return LaunchPlan(KernelConfig("whole_row", 1, 64), 1, "")

    found = plan(Problem(cols=64, inner=rows))
    return answers[0], found.row_range


@pytest.mark.parametrize(
    ("question", "rows", "answer", "row_range"),
    [
        (lambda n: n > 100, 7, False, (1, 100)),
        (lambda n: n >= 100, 1000, True, (100, MAX_RANGE_ROWS)),
        (lambda n: 100 < n, 7, False, (1, 100)),  # noqa: SIM300
        (lambda n: n == 100, 7, False, (1, 99)),
        (lambda n: n != 100, 100, False, (100, 100)),
        (lambda n: n == None, 7, False, (1, MAX_RANGE_ROWS)),  # noqa: E711
        (lambda n: -(-n // 4) <= 10, 7, True, (1, 40)),
        (lambda n: 50 - 2 * n > 0, 7, True, (1, 24)),
        (lambda n: (n + 1) / 2 < 100.25, 7, True, (1, 199)),
        (lambda n: 100 < n < 1000, 500, True, (101, 999)),
        (lambda n: n - 5 and True, 7, True, (6, MAX_RANGE_ROWS)),
        (lambda n: min(n, 32), 40, 32, (33, MAX_RANGE_ROWS)),
        (lambda n: next_power_of_2(n), 40, 64, (33, 64)),
        (lambda n: next_power_of_2(n, 32), 40, 32, (17, MAX_RANGE_ROWS)),
        (lambda n: next_power_of_2(n, 32), 10, 16, (9, 16)),
        (lambda n: next_power_of_2(n, 20), 18, 20, (17, MAX_RANGE_ROWS)),
        (lambda n: (5 - n).bit_length(), 12, 3, (12, 12)),
        (lambda n: int(n // 10), 47, 4, (40, 49)),
        (lambda n: list(range(n // 10)), 25, [0, 1], (20, 29)),
        (lambda n: float(n), 7, 7.0, (7, 7)),
        (lambda n: 1000 // n, 7, 142, (7, 7)),
        (lambda n: n % 4, 7, 3, (7, 7)),
        (lambda n: 2**n, 7, 128, (7, 7)),
        (lambda n: round(n / 2, 1), 7, 3.5, (7, 7)),
        (lambda n: {7: "seven"}[n], 7, "seven", (7, 7)),
        (lambda n: f"{n} {n:,} {n / 2:.2f} {n!r}", 7000, "7000 7,000 3500.00 7000", (1, MAX_RANGE_ROWS)),
        (lambda n: copy.copy(n) > 100, 7, False, (1, 100)),
        (lambda n: copy.deepcopy(n) > 100, 7, False, (1, 100)),
        (lambda n: asdict(Problem(cols=64, inner=n))["inner"] > 100, 7, False, (1, 100)),
        (lambda n: replace(Problem(cols=64, inner=n), outer=2).rows > 100, 7, False, (1, 50)),
    ],
)  # fmt: skip
def test_a_question_narrows_the_range_to_the_rows_with_the_same_answer(
    question: Callable[[Any], Any], rows: int, answer: Any, row_range: tuple[int, int]
) -> None:
    assert read(question, rows) == (answer, row_range)


@pytest.mark.parametrize(
    ("question", "column_range"),
    [
        (lambda n: next_power_of_2(n), (33, 64)),
        (lambda n: n * 4 > 100, (26, MAX_RANGE_ROWS)),
        (lambda n: -(-n // 16), (33, 48)),
        (lambda n: n % 16, (40, 40)),
        (lambda n: f"{n:,}", (1, MAX_RANGE_ROWS)),
    ],
)
def test_a_question_narrows_the_columns_of_a_problem_of_one_row(
    question: Callable[[Any], Any], column_range: tuple[int, int]
) -> None:
    @with_row_range
    def plan(problem: Problem) -> LaunchPlan:
        int(question(problem.cols)) if not isinstance(question(problem.cols), str) else None
        return LaunchPlan(KernelConfig("whole_row", 1, 64), problem.inner, "")

    found = plan(Problem(cols=40, inner=1))
    assert (found.row_range, found.column_range, found.programs) == (None, column_range, 1)


numbers = st.one_of(st.integers(-40, -1), st.integers(1, 40), st.sampled_from([0.5, 3.0, -1.25, 1e9]))
arithmetic = st.tuples(
    st.sampled_from([operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv]), numbers
)
reversed_arithmetic = st.tuples(
    st.sampled_from([lambda a, b: b + a, lambda a, b: b - a, lambda a, b: b * a, lambda a, b: -a]), numbers
)
questions = st.sampled_from(
    [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne, lambda a, b: int(a).bit_length(),
     lambda a, b: min(a, b), lambda a, b: bool(a), lambda a, b: abs(a), lambda a, b: a.bit_length()]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.one_of(arithmetic, reversed_arithmetic), max_size=4),
    st.lists(st.tuples(questions, st.integers(-300, 300)), min_size=1, max_size=3),
    st.integers(2, 400),
    st.data(),
)
def test_all_rows_in_a_range_give_the_same_answers(
    steps: list[Any], asked: list[Any], rows: int, data: st.DataObject
) -> None:
    def answers(count: Any) -> list[Any]:
        value = count
        for step, number in steps:
            value = step(value, number)
        found = [question(value, number) for question, number in asked]
        return [answer if isinstance(answer, (bool, int, float)) else "the value" for answer in found]

    try:
        plain = answers(rows)
    except AttributeError:  # a float has no `bit_length`
        with pytest.raises(AttributeError):
            read(answers, rows)
        return
    found, row_range = read(answers, rows)
    assert row_range is not None
    first, last = row_range
    assert first <= rows <= last
    assert len(found) == len(plain)
    for other in {rows, first, last, data.draw(st.integers(first, last))}:
        expected = answers(other)
        assert [a for a in found if a != "the value"] == [
            e for a, e in zip(found, expected, strict=True) if a != "the value"
        ]


# -- the plans of bundled backends


def planner(arch: str, problem: Problem, batch_invariant: bool = False) -> Callable[[Problem], LaunchPlan]:
    """Returns plan(problem) for problems with the traits of `problem` and any number of rows."""
    backend: Backend = registry.get(ARCHITECTURES[arch])
    backend = invariant(backend) if batch_invariant else backend
    device: DeviceProperties = backend.architectures()[arch]
    options = {name: option.default for name, option in backend.options.items()}
    return lambda problem: backend.plan(problem, device, compiler(problem), options)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Problems of all kinds of kernels, with `outer == 1` and another layout than "inner"."""
    read, written = (draw(st.sampled_from(["bfloat16", "float32", *["float64"] * (i == 0)])) for i in range(2))
    kind = draw(st.sampled_from(["softmax", "norm", "gradient", "numbers", "no statistics"]))
    reads = (read,) * (2 if kind == "gradient" else 1)
    return Problem(
        cols=draw(st.one_of(st.integers(1, 300), st.sampled_from([1024, 4096, 5000, 12_288, 40_000, 300_000]))),
        inner=draw(st.one_of(st.just(1), st.integers(1, 70), st.integers(1, 20_000), st.integers(1, MAX_RANGE_ROWS))),
        reads=reads,
        writes=() if kind == "numbers" else (written,),
        row_writes=("float32",) if kind == "numbers" else (),
        column_reads=(read,) if kind in ("norm", "gradient") else (),
        column_writes=("float32",) * (kind == "gradient"),
        passes={"numbers": 1, "no statistics": 1, "norm": 2}.get(kind, 3),
        statistics=0 if kind == "no statistics" else draw(st.integers(1, 2)),
        live_tiles=draw(st.integers(1, 3)),
        layout=draw(st.sampled_from(["row", "row", "strided"])),
        aligned=draw(st.booleans()),
    )


def supported(arch: str, problem: Problem) -> bool:
    return "float64" not in problem.element_dtypes or "float64" in registry.get(ARCHITECTURES[arch]).dtypes


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(ARCHITECTURES)), problems(), st.booleans(), st.data())
def test_all_rows_in_a_range_have_the_configuration_and_the_programs_of_the_plan(
    arch: str, problem: Problem, batch_invariant: bool, data: st.DataObject
) -> None:
    if not supported(arch, problem):
        return
    make_plan = planner(arch, problem, batch_invariant)
    plan = make_plan(problem)
    assert (plan.row_range is None) == (problem.inner == 1)
    if problem.inner == 1:
        assert (plan.column_range is None) == batch_invariant
        first, last = plan.column_range or (problem.cols,) * 2
        assert 1 <= first <= problem.cols <= last <= MAX_RANGE_ROWS
        for cols in {first, last, data.draw(st.integers(first, last))}:
            other = make_plan(replace(problem, cols=cols))
            fields = {"reason": other.reason, "column_range": (first, last) if plan.column_range else None}
            assert other == replace(plan, **fields)
        return
    assert plan.row_range is not None
    first, last = plan.row_range
    assert 1 <= first <= problem.inner <= last <= MAX_RANGE_ROWS
    for rows in {max(first, 2), problem.inner, last, data.draw(st.integers(max(first, 2), last))}:
        other = make_plan(replace(problem, inner=rows))
        assert (other.config, other.occupancy, other.resources) == (plan.config, plan.occupancy, plan.resources)
        assert other.programs == plan.programs_for(problem, rows)
        assert other.row_range == plan.row_range
        assert other.tiles_per_group == plan.tiles_per_group


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(ARCHITECTURES)), problems())
def test_a_range_changes_no_other_field_of_a_plan(arch: str, problem: Problem) -> None:
    if not supported(arch, problem):
        return
    import tridal_cuda.planning
    import tridal_interpreter
    import tridal_npu.planning
    import tridal_rocm.planning

    device = registry.get(ARCHITECTURES[arch]).architectures()[arch]
    plain: dict[str, Callable[[], LaunchPlan]] = {
        "cuda": lambda: tridal_cuda.planning.plan.__wrapped__(problem, device, compiler(problem)),
        "rocm": lambda: tridal_rocm.planning.plan.__wrapped__(problem, device, compiler(problem)),
        "npu": lambda: tridal_npu.planning.plan.__wrapped__(problem, device, 32),
        "interpreter": lambda: tridal_interpreter._plan.__wrapped__(problem, 4),
    }
    found = planner(arch, problem)(problem)
    assert replace(found, row_range=None, tiles_per_group=None, column_range=None) == plain[ARCHITECTURES[arch]]()


def test_a_range_ends_where_a_launch_would_have_too_many_programs() -> None:
    @with_row_range
    def plan(problem: Problem) -> LaunchPlan:
        config = KernelConfig("cooperative", 1, 16, programs_per_row=100, persistent=False)
        return LaunchPlan(config, problem.tiles(1) * 100, "")

    assert plan(Problem(cols=1600, inner=50, statistics=0)).row_range == (1, (2**31 - 1) // 100)


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
@pytest.mark.parametrize(
    "traits", [{"outer": 2}, {"layout": "inner"}, {"inner": 2**31}], ids=["blocks", "inner", "many_rows"]
)
def test_problems_of_blocks_and_of_inner_rows_have_no_range(arch: str, traits: dict[str, Any]) -> None:
    problem = replace(Problem(cols=1024, inner=40), **traits)
    plan = planner(arch, problem)(problem)
    assert (plan.row_range, plan.tiles_per_group) == (None, None)
    assert type(plan.programs) is int


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
@pytest.mark.parametrize("column_writes", [(), ("float32",)], ids=["no_sums", "sums"])
def test_a_thousand_columns_have_few_ranges(arch: str, column_writes: tuple[str, ...]) -> None:
    problem = Problem(cols=1024, inner=2, column_reads=("float32",), column_writes=column_writes)
    make_plan, ranges, rows = planner(arch, problem), [], 2
    while rows <= MAX_RANGE_ROWS:
        plan = make_plan(replace(problem, inner=rows))
        assert plan.row_range is not None
        ranges.append(plan.row_range)
        rows = plan.row_range[1] + 1
    assert len(ranges) <= 16
