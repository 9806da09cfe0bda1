"""Runs the conformance suite, and random cases, on every backend under test."""

from __future__ import annotations

import heapq
import math
import zlib
from collections.abc import Sequence
from dataclasses import fields
from itertools import product

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from conformance_helpers import fewer_rows
from conftest import backends
from tridal import testing
from tridal.devices.types import Backend
from tridal.ops import table
from tridal.testing.cases import DIRECTIONS, Case


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        matrix = metafunc.config.getoption("--matrix")
        pairs = [(backend, case) for backend in backends(metafunc.config) for case in chosen(backend, matrix)]
        metafunc.parametrize(("tested", "case"), pairs, ids=[f"{b.name}: {case.name}" for b, case in pairs])


def chosen(backend: Backend, matrix: bool) -> Sequence[Case]:
    """All cases, or small ones that hold every pair of an op's direction or a plan override and another trait."""
    cases = testing.cases(backend)
    if matrix:
        return cases

    def size(case: Case) -> tuple[bool, int, int]:
        elements = math.prod(case.shape)
        return elements < _FEWEST_ELEMENTS, elements, zlib.crc32(case.name.encode())

    candidates = sorted(cases, key=size)
    return [
        fewer_rows(case) if backend.interpreted and "lanes" in case.plan else case
        for case in (candidates[number] for number in covering([*map(pairs_of, candidates)]))
    ]


def pairs_of(case: Case) -> set[object]:
    """The pairs of traits that a case holds."""
    traits = [(field.name, getattr(case, field.name)) for field in fields(case) if field.name not in _PAIRED]
    drawn = len(case.numbers) > 1  # from ranges, for all arguments at once
    traits += [(n, "drawn" if drawn and isinstance(value, (int, float)) else value) for n, value in case.numbers]
    kind = case.op, case.direction
    return {(case.shape, case.dim), (kind, case.plan), *product((kind, case.plan), traits)}


def covering(sets: Sequence[set[object]]) -> list[int]:
    """Returns few numbers of sets that together hold all elements: next, the first of those with the most new ones."""
    waiting, seen, found = [(-len(one), number) for number, one in enumerate(sets)], set[object](), list[int]()
    heapq.heapify(waiting)
    while waiting:
        gain, number = heapq.heappop(waiting)
        new = len(sets[number] - seen)
        if new == -gain:
            found.append(number)
            seen |= sets[number]
        elif new:
            heapq.heappush(waiting, (-new, number))
    return sorted(found)


_PAIRED = ("op", "direction", "plan", "shape", "dim", "numbers")
_FEWEST_ELEMENTS = 100  # a smaller case has one block, and is chosen for its shape only


def test_case_passes(tested: Backend, case: Case) -> None:
    result = testing.run_case(case, tested)
    assert result.passed, result.message


@st.composite
def random_cases(draw: st.DrawFn, backend: Backend) -> Case:
    shape = tuple(draw(st.lists(st.integers(1, 40), min_size=0, max_size=5).filter(lambda s: math.prod(s) < 50_000)))
    rank = max(len(shape), 1)
    layouts = ["contiguous", "expanded"] if shape else ["contiguous"]
    layouts += ["sliced", "stepped", "permuted"] if shape else []
    layouts += ["transposed"] if len(shape) > 1 else []
    return Case(
        op=draw(st.sampled_from(sorted(table.one_tensor_ops()))),
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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_case_passes(backend: Backend, data: st.DataObject) -> None:
    result = testing.run_case(data.draw(random_cases(backend)), backend)
    assert result.passed, f"{result.name}: {result.message}"
