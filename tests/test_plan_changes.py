"""The search for changes of plans: it finds faults in a range of sizes, and its plans are those that cases launch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from conformance_helpers import INTERPRETER, registered
from tridal import testing
from tridal.devices import registry
from tridal.devices.types import KernelConfig, LaunchPlan, Problem, Resources, next_power_of_2
from tridal.errors import PlanError
from tridal.ops import table
from tridal.runtime import launch
from tridal.testing.call_kinds import call_kinds
from tridal.testing.cases import DIRECTIONS, Case
from tridal.testing.plan_changes import search_plans

pytestmark = pytest.mark.skipif(INTERPRETER.unavailable() is not None, reason="needs the interpreter")

MAX_ELEMENTS = 1 << 18


class Wrapped:
    """The interpreter with another name and with changed plans."""

    name = "wrapped"
    dtypes = frozenset({"float32", "bfloat16"})  # fewer plans than for all dtypes
    features = frozenset({"scale_mask"})  # other features need overridden plans of all ops, which are searched, too

    def __init__(self, change: Callable[[LaunchPlan, Problem], LaunchPlan], **members: frozenset[str]):
        self._change = change
        vars(self).update(members)

    def __getattr__(self, member: str) -> Any:
        return getattr(INTERPRETER, member)

    def plan(self, problem: Any, device: Any, probe: Any, options: Any) -> LaunchPlan:
        return self._change(INTERPRETER.plan(problem, device, probe, options), problem)


def wrong_where(is_wrong: Callable[[Problem], bool]) -> Wrapped:
    """A backend whose kernels compute exp as zero for some problems. Its plans are valid."""

    def change(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
        return replace(plan, config=replace(plan.config, exp2_bias=1.0)) if is_wrong(problem) else plan

    return Wrapped(change)


KINDS = functools.cache(lambda op: call_kinds(INTERPRETER, [op])[0])


def problem_of(case: Case) -> Problem:
    rows, cols = case.shape[-2:] if case.dim == -1 else reversed(case.shape[-2:])
    for kind in KINDS(case.op):
        for size in (rows, cols), (1, rows):
            if kind.case(*size) == case and kind.of_rows == (size == (rows, cols)):
                return kind.call(*size).problem
    raise AssertionError(case.name)


def found(is_wrong: Callable[[Problem], bool], ops: list[str]) -> list[Case]:
    """The small cases of the search that fail. Of those outside of the range of the fault, every 20th is run."""
    with registered(wrong_where(is_wrong)) as backend:
        cases = [case for case in search_plans(backend, ops).cases if math.prod(case.shape) <= MAX_ELEMENTS]
        cases = [case for index, case in enumerate(cases) if is_wrong(problem_of(case)) or index % 20 == 0]
        return [case for case in cases if not testing.run_case(case, backend).passed]


def test_fault_between_8193_and_16384_columns_is_found_only_by_the_search() -> None:
    def is_wrong(problem: Problem) -> bool:
        return 8193 <= problem.cols <= 16_384

    failed = found(is_wrong, ["softmax"])
    cols = {case.shape[case.dim] for case in failed}
    assert {8193, 16_383} <= cols
    assert all(8193 <= width <= 16_384 for width in cols)
    fixed = {case.shape[case.dim] for case in testing.cases(INTERPRETER, ["softmax"]) if case.shape}
    assert not any(8193 <= width <= 16_384 for width in fixed), "the fixed cases do not find it"


RANGES: dict[str, Callable[[Problem], bool]] = {
    "rows": lambda problem: 100 <= problem.rows <= 200 and problem.layout == "row",
    "inner rows": lambda problem: 100 <= problem.rows <= 200 and problem.layout == "inner",
    "many rows": lambda problem: problem.rows > 1500,
    "one dtype": lambda problem: 2500 <= problem.cols <= 3500 and problem.reads == ("bfloat16",),
    "one width": lambda problem: problem.cols == 4096 and problem.rows >= 16,
    "strided": lambda problem: problem.cols > 600 and problem.layout == "strided",
    "scaled": lambda problem: problem.cols > 600 and problem.scale_mask,
    "aligned": lambda problem: problem.aligned and problem.cols > 5000,
}


@pytest.mark.parametrize("names", [{"many rows"}, RANGES.keys() - {"many rows"}], ids=["many rows", "others"])
def test_faults_in_ranges_are_found(names: set[str]) -> None:
    """Each of them by a case that is in no other range. A case with many rows may be in several."""
    wrong = {name: RANGES[name] for name in names}
    failed = found(lambda problem: any(is_wrong(problem) for is_wrong in wrong.values()), ["softmax"])
    ranges = [[name for name, is_wrong in wrong.items() if is_wrong(problem_of(case))] for case in failed]
    assert all(ranges)
    assert {found[0] for found in ranges if len(found) == 1} == names


def test_fault_of_a_gradient_is_found() -> None:
    failed = found(lambda problem: len(problem.reads) == 2 and 130 <= problem.cols <= 250, ["log_softmax"])
    assert failed
    assert {case.direction for case in failed} == {"backward"}


def test_exception_of_a_plan_is_found() -> None:
    def change(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
        if 40 <= problem.rows <= 50:
            raise PlanError("no plan today")
        return plan

    with registered(Wrapped(change)) as backend:
        cases = [case for case in search_plans(backend, ["softmax"]).cases if 40 <= math.prod(case.shape[:-1]) <= 50]
        messages = {testing.run_case(case, backend).message for case in cases if case.dim == -1}
    assert messages == {"raised PlanError: backend 'wrapped' (registered in code): plan(): no plan today"}


@pytest.mark.slow("it searches the plans of cross_entropy twice")
def test_fault_of_the_kernels_of_a_loss_is_found() -> None:
    """Kernels of rows, and the one that reduces the losses of all rows."""
    failed = found(lambda problem: problem.cols > 600, ["cross_entropy"])
    assert {case.direction for case in failed} == {*DIRECTIONS}

    def change(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
        if "int64" in problem.column_reads and 600 <= problem.cols <= 800:
            raise PlanError("no plan today")
        return plan

    with registered(Wrapped(change)) as backend:
        cases = [case for case in search_plans(backend, ["cross_entropy"]).cases if 600 <= case.shape[0] <= 800]
        messages = [result.message for case in cases if not (result := testing.run_case(case, backend)).passed]
    assert messages
    assert all(str(message).endswith("plan(): no plan today") for message in messages)


@pytest.mark.slow("it runs a case of each kind of call")
def test_cases_launch_the_plans_that_were_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Problem] = []
    prepare = launch.prepare
    monkeypatch.setattr(launch, "prepare", lambda call, *a: launched.append(call.problem) or prepare(call, *a))
    for kind in call_kinds(INTERPRETER, None)[0]:
        if kind.example.dtype != "bfloat16":
            continue
        launched.clear()
        registry.invalidate()
        assert testing.run_case(kind.case(9, 24), INTERPRETER).passed
        assert kind.call(9, 24).problem in launched


@pytest.mark.parametrize("where", ["config", "programs", "error"])
def test_a_plan_that_does_not_hold_in_its_range_is_reported(where: str) -> None:
    """The plans for 500 rows and more are other ones, but the ranges do not say so."""

    def planned(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
        config = KernelConfig("whole_row", 1, next_power_of_2(problem.cols))
        many = problem.inner >= 500
        if many and where == "error":
            raise PlanError("no plan today")
        config = replace(config, num_warps=8 if many and where == "config" else 4)
        has_range = problem.layout != "inner" and problem.outer == 1
        return LaunchPlan(
            config, 3 if many and where == "programs" else 4, "", row_range=(1, 9999) if has_range else None
        )

    backend: Any = Wrapped(planned, schedules=frozenset({"whole_row"}), dtypes=frozenset({"float32"}))
    search = search_plans(backend, ["softmax"])
    found = {
        "config": "rows has 4 programs with KernelConfig(schedule='whole_row', rows=1, cols=",
        "programs": "rows has 3 programs with KernelConfig(schedule='whole_row', rows=1, cols=",
        "error": "rows raises PlanError: no plan today",
    }
    assert search.wrong_ranges
    assert all(
        fault.startswith("softmax") and "row_range = (1, 9999), but the plan for" in fault
        for fault in search.wrong_ranges
    )
    assert any(found[where] in fault for fault in search.wrong_ranges)


def test_a_schedule_that_no_plan_uses_and_that_cannot_be_forced_is_reported() -> None:
    def never_whole_rows(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
        return replace(plan, config=replace(plan.config, schedule="column_loop"))

    backend: Any = Wrapped(never_whole_rows, schedules=frozenset({"column_loop"}), features=frozenset({"reload"}))
    assert search_plans(backend, ["softmax"]).not_reached == ("reload",)


def test_a_feature_that_no_selected_op_can_use_is_reached_by_another_op() -> None:
    assert not any(op.scale_mask for op in table.one_tensor_ops().values() if op.name == "log_softmax")
    assert search_plans(INTERPRETER, ["log_softmax"]).not_reached == ()


def test_search_stops_after_the_limit_of_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiling(Wrapped):
        def plan(self, problem: Any, device: Any, probe: Any, options: Any) -> LaunchPlan:
            config = KernelConfig("whole_row", 1, 1 << (problem.cols - 1).bit_length())
            return LaunchPlan(config, 1, "", resources=probe(config))

        def properties(self, index: int) -> Any:
            return replace(INTERPRETER.properties(index), target=("cuda", 90, 32))

    monkeypatch.setattr("tridal.runtime.compiler.resources", lambda *_: Resources(32, 0, 0))
    backend: Any = Compiling(lambda plan, problem: plan, schedules=frozenset({"whole_row"}), features=frozenset())
    tracked: list[Any] = []
    search = search_plans(backend, ["softmax"], max_compiled=30, track=lambda kinds: tracked.extend(kinds) or kinds)
    assert tracked == call_kinds(backend, ["softmax"])[0]
    assert search.cases
    assert len(search.skipped) == len(call_kinds(backend, ["softmax"])[0]) - 1
