"""The cases on both sides of each change of plan pass, on every backend under test."""

from __future__ import annotations

import functools
import json
import math

import pytest

import case_records
import golden_records
from conformance_helpers import INTERPRETER
from tridal import testing
from tridal.devices.types import Backend
from tridal.testing import PlanSearch


@functools.cache
def searched(backend: Backend) -> PlanSearch:
    """The search takes 10 seconds, so all tests that need its results are in this file."""
    return testing.search_plans(backend)


_PARTS = 6  # processes share the cases on both sides of changes
_MAX_ELEMENTS = 1 << 15  # of these cases, without --matrix


@pytest.mark.slow("it searches the plans of all ops")
@pytest.mark.parametrize("part", range(_PARTS))
def test_both_sides_of_every_change_of_plan_pass(backend: Backend, part: int, request: pytest.FixtureRequest) -> None:
    cases, limit = searched(backend).cases, _MAX_ELEMENTS
    if request.config.getoption("--matrix"):
        limit = max(math.prod(case.shape) for case in cases)
    results = [testing.run_case(case, backend) for case in cases[part::_PARTS] if math.prod(case.shape) <= limit]
    assert results
    assert [f"{result.name}: {result.message}" for result in results if not result.passed] == []


@pytest.mark.slow("it searches the plans of all ops, unless another test has")
def test_every_listed_schedule_and_feature_is_tested(backend: Backend) -> None:
    assert searched(backend).not_reached == ()


@pytest.mark.slow("it searches the plans of all ops, unless another test has")
@pytest.mark.skipif(INTERPRETER.unavailable() is not None, reason="needs the interpreter")
def test_search_of_a_correct_backend_is_bounded_and_reaches_every_schedule() -> None:
    search = searched(INTERPRETER)
    recorded = json.loads(golden_records.file_of("searched").read_text())
    assert case_records.searched(search) == recorded, f"if meant: {golden_records.COMMAND}"
    assert len(set(search.cases)) == len(search.cases)
    assert search.not_reached == search.skipped == search.wrong_ranges == ()
