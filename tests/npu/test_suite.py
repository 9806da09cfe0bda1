"""The conformance suite that every backend has to pass, on the emulated NPU."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from offboard import lint, native
from tridal import testing
from tridal.devices import registry
from tridal.testing import tolerance

PARTS = 8  # test processes share the cases


@pytest.fixture(autouse=True)
def sequential_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allows more roundings in sums: the code on the CPU adds elements one after the other, an NPU in a tree."""
    of = tolerance.Arithmetic.of

    def sequential(*arguments: Any) -> tolerance.Arithmetic:
        found = of(*arguments)
        return replace(found, sum_roundings=max(found.sum_roundings, 2 * math.sqrt(found.cols)))

    monkeypatch.setattr(tolerance.Arithmetic, "of", sequential)


@pytest.mark.parametrize("part", range(PARTS))
def test_the_cases_of_the_suite_pass(part, request):
    backend = registry.available("npu")
    found = (testing.cases if request.config.getoption("--matrix") else testing.quick_cases)(backend)
    # torch's autograd engine supports only one device of a backend that is written in Python.
    cases = [case for case in found if not (case.last_device and case.direction != "forward")]
    results = [testing.run_case(case, backend) for case in cases[part::PARTS]]
    assert not [f"{result.name}: {result.message}" for result in results if not result.passed]
    problems = {text: lint.problems(text, contiguous=False, gathers=True) for text in native.loaded()}
    assert not [found for found in problems.values() if found]
