"""Tests the declaration of L2 normalization, and runs tridal's suite."""

import pytest

from tridal import registry, testing

BACKEND = registry.available("interpreter")
CASES = testing.quick_cases(BACKEND, ["l2_norm"])


def test_declaration():
    results = testing.check_declarations(["l2_norm"])
    assert [result for result in results if not result.passed] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case):
    result = testing.run_case(case, BACKEND)
    assert result.passed, result.message
