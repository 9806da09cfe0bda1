"""Every kernel that the NPU's plan emits compiles, and what was compiled computes softmax."""

from __future__ import annotations

import functools

import pytest

from offboard import lint, native
from tridal import launch

from .execution import complaints
from .matrix import DTYPES, LAYOUTS, OPS, Case, group, properties

GROUPS = [
    pytest.param(
        op, dtypes, layout,
        id="-".join((op, *dict.fromkeys(dtypes), layout)),
        marks=pytest.mark.xdist_group("-".join((op, *dtypes, layout))),
    )
    for op in OPS for dtypes in DTYPES for layout in LAYOUTS
]  # fmt: skip


@functools.lru_cache(maxsize=2)
def compiled(op: str, dtypes: tuple[str, str], layout: str) -> dict[launch.Variant, tuple[Case, str]]:
    """Each different kernel of a group, with a case that it is compiled for and its linalg IR."""
    found: dict[launch.Variant, tuple[Case, str]] = {}
    for case in group(op, dtypes, layout):
        variant = case.variant()
        if variant not in found:
            found[variant] = case, launch.compile_variant(variant, properties().target).asm["ttadapter"]
    return found


@pytest.mark.parametrize(("op", "dtypes", "layout"), GROUPS)
def test_compiles(op, dtypes, layout, count):
    kernels = compiled(op, dtypes, layout)
    found = {
        str(case): problems
        for case, linalg in kernels.values()
        if (problems := lint.problems(linalg, contiguous=layout != "strided"))
    }
    assert not found
    algorithms = {case.plan().algorithm for case, _ in kernels.values()}
    assert algorithms == {"tile", "looped"}
    count("kernels compiled", len(kernels))


@pytest.mark.parametrize(("op", "dtypes", "layout"), GROUPS)
def test_computes(op, dtypes, layout, count):
    cases = group(op, dtypes, layout)
    native.build(linalg for _, linalg in compiled(op, dtypes, layout).values())
    found = {str(case): wrong for case in cases if (wrong := complaints(case))}
    assert not found
    count("cases executed", len(cases))
