"""Seeded faults in the kernel source are caught: each compiles, runs, and gives something that the checks refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from offboard import native
from tridal.runtime import launch

from .execution import complaints
from .matrix import LAYOUTS, OPS, Case, group, properties

SOURCE = Path(launch.__file__).parent.with_name("kernels") / "softmax.py"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault in one function of the kernel source: every occurrence of `old` there becomes `new`."""

    fault: str
    function: str
    old: str
    new: str

    def source(self) -> str:
        """The kernel source with the fault."""
        text = SOURCE.read_text()
        [function] = re.findall(rf"@triton\.jit\ndef {self.function}\(.*?(?=\n@triton\.jit|\Z)", text, re.DOTALL)
        assert self.old in function, f"{self.function} no longer says {self.old!r}: adapt the mutant {self.fault!r}"
        return text.replace(function, function.replace(self.old, self.new))


MUTANTS = [
    Mutant("stored without a mask", "forward", "target, y.to(out_ptr.dtype.element_ty), mask=mask, ",
           "target, y.to(out_ptr.dtype.element_ty), "),
    Mutant("padding counts as 0", "_scores", "other=-_INF", "other=0.0"),
    Mutant("one tile too few", "_turns", "groups, group, count, groups", "groups, group, count - 1, groups"),
    Mutant("maximum not subtracted", "_exp_less", "x - tl.expand_dims(low, AXIS)", "x"),
    Mutant("input's stride for the output", "forward", "column, out_outer, out_inner,", "column, out_outer, in_inner,"),
    Mutant("wrong tensor summed", "backward", "tl.sum(dy if LOG else y * dy, AXIS)", "tl.sum(y, AXIS)"),
    Mutant("sum subtracted from", "backward", "y * (dy - across)", "y * (across - dy)"),
    Mutant("gradient stored for the output", "backward", "dx.to(out_ptr", "dy.to(out_ptr"),
    Mutant("sum not rescaled", "forward_looped", "total * tl.exp(top - low)", "total"),
    Mutant("maximum forgotten", "forward_looped", "top = higher", "top = top"),
    Mutant("last column tile left out", "forward_looped", "tl.cdiv(cols, COLS)", "cols // COLS"),
    Mutant("NaN before the first number", "forward_looped", "tl.where(higher == -_INF, 0.0, higher)", "higher"),
    Mutant("sum overwritten", "backward_looped", "total += ", "total = "),
    Mutant("gradient's stride for the saved output", "backward_looped",
           "y_ptr, block, first, column, out_outer, out_inner", "y_ptr, block, first, column, in_outer, in_inner"),
    Mutant("columns unmasked", "_place", "< cols - column", "< COLS"),
    Mutant("one column too many", "_place", "< cols - column", "<= cols - column"),
    Mutant("rows unmasked", "_place", "(_rows(ROWS, AXIS, WIDE) < inner - first) & mask", "mask"),
    Mutant("one row too many", "_place", "< inner - first) & mask", "<= inner - first) & mask"),
    Mutant("block's stride mistaken", "_pointers", "block * outer_stride", "block * inner_stride"),
    Mutant("first row forgotten", "_pointers", " + first * inner_stride", ""),
]  # fmt: skip


@pytest.fixture
def product_source(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Lets a test put another kernel source in the product's place; afterwards all is as before."""
    caches = (launch._kernels, launch.compile_variant, launch._load)
    for cache in caches:
        cache.cache_clear()
    yield monkeypatch
    for cache in caches:
        cache.cache_clear()


def cases_of(function: str) -> list[Case]:
    """The largest case of each form of tensor that is not huge and launches a kernel; of a helper, a plain softmax."""
    helper = function.startswith("_")
    found: dict[tuple[str, str], Case] = {}
    for op, layout in product(("softmax",) if helper else OPS, LAYOUTS):
        for case in group(op, ("float32", "float32"), layout):
            small = case.rows * case.cols < 300_000
            if small and case.variant().kernel == ("forward" if helper else function):
                found[op, case.form] = case
    return list(found.values())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.function}: {mutant.fault}")
def test_a_mutant_is_caught(mutant, product_source, tmp_path, count):
    count("mutants", 1)
    path = tmp_path / "softmax.py"
    path.write_text(mutant.source())
    product_source.setattr(launch, "_SOURCE", path)
    cases = cases_of(mutant.function)
    assert cases
    target = properties().target
    native.build(launch.compile_variant(case.variant(), target).asm["ttadapter"] for case in cases)
    assert any(complaints(case, trusted=False) for case in cases), f"nothing is wrong with any of {len(cases)} cases"
    count("mutants caught", 1)
