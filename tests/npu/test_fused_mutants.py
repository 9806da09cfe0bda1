"""The conformance suite finds seeded faults in the maths of ops of several tensors, on the emulated NPU."""

from __future__ import annotations

import ast

import pytest

from tridal import testing
from tridal.devices import registry

from .fused_mutants import MUTANTS
from .test_mutants import install_source, read_source

assert install_source
MODULES = {mutant.module for mutant in MUTANTS}


@pytest.fixture
def passes(install_source):
    """passes(case) runs a case with the installed source, without what was prepared before."""
    backend = registry.available("npu")

    def run(case) -> bool:
        registry.invalidate()
        return testing.run_case(case, backend).passed

    yield run
    registry.invalidate()


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_is_caught(mutant, install_source, passes, count):
    count("mutants", 1)
    source = read_source(mutant.module)
    faulty = mutant.source(source)
    assert faulty != ast.unparse(ast.parse(source)), "the edit changes nothing"
    install_source(mutant.module, faulty)
    assert not passes(mutant.case), f"the case {mutant.case.name} does not find the fault"
    count("mutants caught", 1)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_the_unchanged_source_passes_all_cases(module, install_source, passes):
    install_source(module, ast.unparse(ast.parse(read_source(module))))
    cases = dict.fromkeys(mutant.case for mutant in MUTANTS if mutant.module == module)
    assert [case.name for case in cases if not passes(case)] == []
