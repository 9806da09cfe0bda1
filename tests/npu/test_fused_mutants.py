"""The conformance suite finds seeded faults in kernels of several tensors, on the emulated NPU."""

from __future__ import annotations

import math

import pytest

from tridal import testing
from tridal.devices import registry
from tridal.testing.checking import Result

from .fused_mutants import MUTANTS
from .seeding import seeded

MODULES = sorted({mutant.module for mutant in MUTANTS})


def run(case: testing.Case) -> Result:
    """Runs a case, without what was prepared before."""
    registry.invalidate()
    try:
        return testing.run_case(case, registry.available("npu"))
    finally:
        registry.invalidate()


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_is_caught(mutant):
    with seeded(mutant):
        result = run(mutant.case)
    assert not result.passed, f"the case {result.name} does not find the fault"
    assert not math.isnan(result.error), f"the case {result.name} has no result: {result.message}"


@pytest.mark.parametrize("module", MODULES)
def test_the_unchanged_source_passes_all_cases(module):
    results = [run(case) for case in {mutant.case for mutant in MUTANTS if mutant.module == module}]
    assert [result.name for result in results if not result.passed] == []
