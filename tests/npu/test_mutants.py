"""The checks find seeded faults: each mutant of a kernel compiles, runs, and gives a result that they reject."""

from __future__ import annotations

import ast
import pkgutil
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

import tridal.kernels
import tridal.library.losses.kernels
import tridal.library.norms.kernels
import tridal.library.softmax.kernels
from tridal.runtime import compiler, launch, op_functions

from .ast_edits import EditError, find_function
from .execution import find_faults
from .fused_mutants import MUTANTS as FUSED_MUTANTS
from .matrix import FORMS, KERNELS, LAYOUTS, Case, group
from .mutants import MUTANTS, Mutant

FLOAT32 = ("float32", "float32")
PACKAGES = (
    tridal.kernels, tridal.library.softmax.kernels, tridal.library.norms.kernels, tridal.library.losses.kernels
)  # fmt: skip
MODULES = {
    found.name: (package, f"{package.__name__}.{found.name}")
    for package in PACKAGES for found in pkgutil.iter_modules(package.__path__)
}  # fmt: skip
"""The package and the full name of each module of Triton functions, by its name."""


@pytest.fixture
def install_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """install_source(module, source) replaces the source of one of `MODULES` for one test.

    The runtime loads the modules of a copy of their folders. All functions are new, so Triton finds no stale hash.
    Schedules are templates, which Python cannot import.
    """
    originals = {name: sys.modules[name] for _, name in MODULES.values() if name in sys.modules}
    caches = (
        compiler.compile_kernel, compiler._entry, launch._load, op_functions.packs_of, op_functions.constants_of
    )  # fmt: skip
    for package in PACKAGES:
        copy = tmp_path / package.__name__
        shutil.copytree(package.__path__[0], copy, ignore=shutil.ignore_patterns("__pycache__"))

    def install(module: str, source: str) -> None:
        (tmp_path / MODULES[module][0].__name__ / f"{module}.py").write_text(source)
        for package in PACKAGES:
            monkeypatch.setattr(package, "__path__", [str(tmp_path / package.__name__)])
        for _, name in MODULES.values():
            sys.modules.pop(name, None)
        for cache in caches:
            cache.cache_clear()

    yield install
    for name, (package, full) in MODULES.items():
        sys.modules.pop(full, None)
        if full in originals:
            sys.modules[full] = originals[full]
            setattr(package, name, originals[full])
    for cache in caches:
        cache.cache_clear()


def read_source(module: str) -> str:
    return Path(MODULES[module][0].__path__[0], f"{module}.py").read_text()


def cases_for(mutant: Mutant) -> list[Case]:
    """Cases with float32 tensors that are not large: one for each kernel, form and schedule of the mutant."""
    if mutant.modified:
        rows = {"whole_row": (40, 70), "column_loop": (9, 40_000)}
        shapes = product(mutant.kernels, rows.values())
        return [Case(kernel, FLOAT32, "row", cols, rows, "padded", modified=True) for kernel, (rows, cols) in shapes]
    if mutant.square:
        return [Case(kernel, FLOAT32, "row", 32, 1031, "padded") for kernel in mutant.kernels]
    found: dict[tuple[str, str, str], Case] = {}
    for kernel, layout in product(mutant.kernels, LAYOUTS):
        for case in group(kernel, FLOAT32, layout):
            schedule = case.specialization().entry
            executed = mutant.module not in ("whole_row", "column_loop") or schedule == mutant.module
            if case.rows * case.cols < 300_000 and executed:
                found[kernel, case.form, schedule] = case
    return list(found.values())


def test_there_are_mutants_of_every_module_that_the_npu_executes():
    # They are for cooperative plans, for sums over rows, which no `Case` has, for other backends, and for trials.
    not_executed = {"exchange", "column_sums", "lanes", "trial"}
    assert {mutant.module for mutant in (*MUTANTS, *FUSED_MUTANTS)} == set(MODULES) - not_executed
    assert len({str(mutant) for mutant in MUTANTS}) == len(MUTANTS) >= 20


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_is_caught(mutant, install_source, count):
    count("mutants", 1)
    source = read_source(mutant.module)
    faulty = mutant.source(source)
    assert faulty != ast.unparse(ast.parse(source)), "the edit changes nothing"
    install_source(mutant.module, faulty)
    cases = cases_for(mutant)
    assert any(find_faults(case, trusted=False) for case in cases), f"none of {len(cases)} cases finds the fault"
    count("mutants caught", 1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_unchanged_source_passes(kernel, install_source):
    for module in ("whole_row", "column_loop"):
        install_source(module, ast.unparse(ast.parse(read_source(module))))
    mutant = next(mutant for mutant in MUTANTS if mutant.module == "tiles")
    cases = cases_for(Mutant("tiles", mutant.function, "", mutant.edit, (kernel,), False, False))
    assert {case.form for case in cases} == {form for forms in FORMS.values() for form in forms}
    assert [fault for case in cases for fault in find_faults(case, trusted=False)] == []


@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS if mutant.modified or mutant.square], ids=lambda mutant: mutant.function
)
def test_the_unchanged_source_passes_in_special_cases(mutant):
    assert [fault for case in cases_for(mutant) for fault in find_faults(case)] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_an_edit_that_does_not_apply_fails(mutant):
    signature = ast.unparse(find_function(ast.parse(read_source(mutant.module)), mutant.function).args)
    with pytest.raises(EditError):
        mutant.source(f"def {mutant.function}({signature}):\n    pass\n")
    with pytest.raises(EditError, match=f"function {mutant.function}"):
        mutant.source("")
