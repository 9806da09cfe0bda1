"""The conformance suite finds seeded faults in kernels on the emulated NPU."""

from __future__ import annotations

import math

import pytest

from tridal import testing
from tridal.devices import registry
from tridal.testing.checking import Result

from .fused_mutants import MUTANTS as FUSED_MUTANTS
from .mutants import MUTANTS as ONE_TENSOR
from .seeding import MODULES, SCHEDULES, EditError, Mutant, seeded

MUTANTS = [*ONE_TENSOR, *FUSED_MUTANTS]


def run(case: testing.Case) -> Result:
    """Runs a case, without what was prepared before."""
    registry.invalidate()
    try:
        return testing.run_case(case, registry.available("npu"))
    finally:
        registry.invalidate()


def test_there_are_mutants_of_every_module_that_the_npu_executes():
    files = {"row_index", "top"}  # other files are for cooperative plans or lanes, which the NPU does not have
    assert {mutant.module for mutant in MUTANTS} == {"kernel", *SCHEDULES, *files, *MODULES}
    assert len({str(mutant) for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_is_caught(mutant):
    with seeded(mutant):
        result = run(mutant.case)
    assert not result.passed, f"the case {result.name} does not find the fault"
    wrote_outside = "wrote outside of its tensors" in result.message
    assert wrote_outside or not math.isnan(result.error), f"the case {result.name} has no result: {result.message}"


@pytest.mark.parametrize("module", sorted({mutant.module for mutant in MUTANTS}))
def test_the_unchanged_source_passes_all_cases(module):
    results = [run(case) for case in {mutant.case for mutant in MUTANTS if mutant.module == module}]
    assert [result.name for result in results if not result.passed] == []


@pytest.mark.parametrize("place", ["kernel", "softmax.row_scale"])
def test_an_edit_that_does_not_apply_fails(place):
    with pytest.raises(EditError, match="found no nowhere"), seeded(Mutant(place, "", "nowhere", "")):
        run(ONE_TENSOR[0].case)
