"""Tests of L2 normalisation: its declaration, and the cases of tridal's conformance suite."""

import pytest

from tridal import registry, testing

BACKEND = registry.available("interpreter")


def test_declaration():
    results = testing.check_declarations(["l2_norm"])
    assert [f"{result.name}: {result.message}" for result in results if not result.passed] == []


@pytest.mark.parametrize("case", testing.cases(BACKEND, ["l2_norm"]), ids=lambda case: case.name)
def test_case(case):
    result = testing.run_case(case, BACKEND)
    assert result.passed, result.message
