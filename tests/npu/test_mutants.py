"""The checks find seeded faults: each mutant of a kernel compiles, runs, and gives a result that they reject."""

from __future__ import annotations

import functools
from itertools import product

import pytest

from .execution import find_faults
from .fused_mutants import MUTANTS as FUSED_MUTANTS
from .matrix import FORMS, KERNELS, LAYOUTS, Case, group
from .mutants import MUTANTS
from .seeding import MODULES, SCHEDULES, EditError, Mutant, is_changed, seeded

FLOAT32 = ("float32", "float32")


def cases_for(mutant: Mutant) -> list[Case]:
    """Cases with float32 tensors that are not large: one for each kernel, form and schedule that has the fault."""
    if mutant.modified:
        rows = {"whole_row": (40, 70), "column_loop": (9, 40_000)}
        shapes = product(mutant.kernels, rows.values())
        return [Case(kernel, FLOAT32, "row", cols, rows, "padded", modified=True) for kernel, (rows, cols) in shapes]
    if mutant.square:
        return [Case(kernel, FLOAT32, "row", 32, 1031, "padded") for kernel in mutant.kernels]
    small = [case for kernel in mutant.kernels for case in small_cases(kernel)]
    if mutant.module not in MODULES:
        small = [case for case in small if is_changed(mutant, case.specialization())]
    return list({(case.kernel, case.form, case.specialization().entry): case for case in small}.values())


@functools.cache
def small_cases(kernel: str) -> list[Case]:
    cases = (case for layout in LAYOUTS for case in group(kernel, FLOAT32, layout))
    return [case for case in cases if case.rows * case.cols < 300_000]


def test_there_are_mutants_of_every_module_that_the_npu_executes():
    files = {"row_index"}  # other files are for cooperative plans or lanes, which the NPU does not have
    mutants = [*MUTANTS, *FUSED_MUTANTS]
    assert {mutant.module for mutant in mutants} == {"kernel", *SCHEDULES, *files, *MODULES}
    assert len({str(mutant) for mutant in mutants}) == len(mutants)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_is_caught(mutant):
    cases = cases_for(mutant)
    with seeded(mutant):
        assert any(find_faults(case, trusted=False) for case in cases), f"none of {len(cases)} cases finds the fault"


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_unchanged_kernel_passes(kernel):
    cases = cases_for(Mutant("numerics.exp", "", "", "", (kernel,)))
    assert {case.form for case in cases} == {form for forms in FORMS.values() for form in forms}
    assert [fault for case in cases for fault in find_faults(case, trusted=False)] == []


@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.modified or mutant.square], ids=str)
def test_the_unchanged_kernel_passes_in_special_cases(mutant):
    assert [fault for case in cases_for(mutant) for fault in find_faults(case)] == []


@pytest.mark.parametrize("place", ["kernel", "softmax.row_scale"])
def test_an_edit_that_does_not_apply_fails(place):
    with pytest.raises(EditError, match="found no nowhere"), seeded(Mutant(place, "", "nowhere", "")):
        find_faults(small_cases("softmax")[0])
