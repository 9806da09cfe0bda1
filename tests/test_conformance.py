"""The conformance suite over every backend under test, and random cases beside the chosen ones."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from conftest import backends
from tridal import testing
from tridal.devices.types import Backend
from tridal.testing.cases import DIRECTIONS, NAMES, Case


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        pairs = [(backend, case) for backend in backends(metafunc.config) for case in testing.cases(backend)]
        metafunc.parametrize(("tested", "case"), pairs, ids=[f"{b.name}: {case.name}" for b, case in pairs])


def test_case(tested: Backend, case: Case) -> None:
    result = testing.run_case(case, tested)
    assert result.passed, result.message


@st.composite
def random_cases(draw: st.DrawFn, backend: Backend) -> Case:
    shape = tuple(draw(st.lists(st.integers(1, 40), min_size=0, max_size=5).filter(lambda s: _size(s) < 50_000)))
    rank = max(len(shape), 1)
    layouts = ["contiguous", "expanded"] if shape else ["contiguous"]
    layouts += ["sliced", "stepped", "permuted"] if shape else []
    layouts += ["transposed"] if len(shape) > 1 else []
    return Case(
        op=draw(st.sampled_from(NAMES)),
        direction=draw(st.sampled_from(DIRECTIONS)),
        shape=shape,
        dim=draw(st.integers(-rank, rank - 1)),
        dtype=draw(st.sampled_from(sorted(backend.dtypes))),
        cast=draw(st.sampled_from([None, *sorted(backend.dtypes)])),
        layout=draw(st.sampled_from(layouts)),
        grad_layout=draw(st.sampled_from(layouts)),
        values=draw(st.sampled_from(["normal", "dominant", "some -inf", "some nan"])),
        plan=draw(st.sampled_from(["planned", *testing.plans(backend)])),
    )


def _size(shape: list[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_case(backend: Backend, data: st.DataObject) -> None:
    result = testing.run_case(data.draw(random_cases(backend)), backend)
    assert result.passed, f"{result.name}: {result.message}"
