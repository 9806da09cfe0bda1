"""Runs the conformance suite, and random cases, on every backend under test."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from conftest import backends
from tridal import testing
from tridal.devices.types import Backend
from tridal.ops import table
from tridal.testing.cases import DIRECTIONS, Case


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        matrix = metafunc.config.getoption("--matrix")
        cases = testing.cases if matrix else testing.quick_cases
        pairs = [(b, case) for b in backends(metafunc.config) for case in cases(b)]
        metafunc.parametrize(("tested", "case"), pairs, ids=[f"{b.name}: {case.name}" for b, case in pairs])


def test_case_passes(tested: Backend, case: Case) -> None:
    result = testing.run_case(case, tested)
    assert result.passed, result.message


@st.composite
def random_cases(draw: st.DrawFn, backend: Backend) -> Case:
    shape = tuple(draw(st.lists(st.integers(1, 40), min_size=0, max_size=5).filter(lambda s: math.prod(s) < 5_000)))
    rank = max(len(shape), 1)
    layouts = ["contiguous", "expanded"] if shape else ["contiguous"]
    layouts += ["sliced", "stepped", "permuted"] if shape else []
    layouts += ["transposed"] if len(shape) > 1 else []
    return Case(
        op=draw(st.sampled_from([op.name for op in table.ops().values() if op.one_tensor])),
        direction=draw(st.sampled_from(DIRECTIONS)),
        shape=shape,
        dim=draw(st.integers(-rank, rank - 1)),
        dtype=draw(st.sampled_from(sorted(backend.dtypes))),
        cast=draw(st.sampled_from([None, *sorted(backend.dtypes)])),
        layout=draw(st.sampled_from(layouts)),
        grad_layout=draw(st.sampled_from(layouts)),
        values=draw(st.sampled_from(["normal", "dominant", "some -inf", "some nan"])),
        plan=draw(st.sampled_from(["planned", *testing.overrides(backend)])),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_case_passes(backend: Backend, data: st.DataObject) -> None:
    result = testing.run_case(data.draw(random_cases(backend)), backend)
    assert result.passed, f"{result.name}: {result.message}"
