"""The conformance suite with kernels that triton-xpu compiles and Intel's OpenCL runtime executes on the CPU."""

from __future__ import annotations

import pytest

import tridal
from opencl import assembler, driver
from tridal import testing
from tridal.devices import registry
from tridal.ops import table
from tridal.runtime import compiler
from tridal.testing.cases import Case
from tridal_xpu import ARCHITECTURES

from .conftest import NAME

PARTS = 16  # test processes share the cases
STEP = 8  # of the quick cases, one in so many is executed, besides the first of each op, direction and dtype


def chosen(every: bool) -> list[Case]:
    """All cases, or a sample with each op, direction and dtype."""
    backend = registry.available(NAME)
    if every:
        return list(testing.cases(backend))
    quick = list(testing.quick_cases(backend))
    first = {(case.op, case.direction, case.dtype): case for case in reversed(quick)}
    return list(dict.fromkeys([*first.values(), *quick[::STEP]]))


@pytest.mark.parametrize("part", range(PARTS))
def test_the_cases_of_the_suite_pass_and_their_kernels_assemble_with_few_spills(part, request):
    """A plan that a case sets itself, such as one tile for wide rows of six tensors, may spill."""
    backend = registry.available(NAME)
    cases = chosen(request.config.getoption("--matrix"))[part::PARTS]
    cases.sort(key=lambda case: case.plan == "planned")
    others = sum(case.plan != "planned" for case in cases)
    results = [testing.run_case(case, backend) for case in cases[:others]]
    before = set(driver.built)
    results += [testing.run_case(case, backend) for case in cases[others:]]
    assert not [f"{result.name}: {result.message}" for result in results if not result.passed]
    new = [(kernel.name, spirv) for spirv, kernel in driver.built.items() if spirv not in before]
    if assembler.program() is None:
        return  # test_ocloc_is_installed says so
    spills = {f"{name} {part}": assembler.spilled(spirv, "pvc") for name, spirv in new}
    assert not {name: spilled for name, spilled in spills.items() if spilled > assembler.MAX_SPILL}


@pytest.mark.parametrize("op", sorted(table.kernels()))
def test_the_kernels_for_dg2_assemble_with_few_spills(op):
    """DG2 has half as many registers as the GPU of the executed kernels, and other plans."""
    if assembler.program() is None:
        return  # test_ocloc_is_installed says so
    device = ARCHITECTURES["dg2"]
    plan = tridal.plan(1823, 781, dtype="bfloat16", op=op, arch="dg2")
    spirv = compiler.compile_kernel(plan.call.specialize(plan.config), device.target).asm["spv"]
    assert assembler.spilled(spirv, "dg2") <= assembler.MAX_SPILL


def test_ocloc_is_installed():
    if assembler.program() is None:
        pytest.skip("ocloc is not installed, so no kernel was assembled: apt-get install intel-opencl-icd")
