"""Schedules are loaded once per kernel: packs are expanded, names exist, and no two kernels share compiled code."""

from __future__ import annotations

import ast
import functools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import plan_records
from call_helpers import SM_90, WHOLE_ROW, kernel_call
from golden_plans import Question
from op_sources import make_kernel
from tridal import kernels
from tridal.devices.types import KernelConfig
from tridal.ops import Statistic
from tridal.runtime import compiler, instance
from tridal.runtime.constant_nodes import nodes_in
from tridal.runtime.packs import expand
from tridal.runtime.triton_functions import Definition

PACKS = {"each_x": ("a", "b"), "each_y": ("c", "d"), "each_z": (), "each_three": ("e", "f", "g")}


@pytest.mark.parametrize(
    ("source", "expanded"),
    [
        ("each_x = load(each_y, 1)", "a = load(c, 1); b = load(d, 1)"),
        ("each_z = load(\n    each_z\n)\nx = 1", "pass\n\n\nx = 1"),
        ("x = f(1, *each_x, *each_z)", "x = f(1, a, b)"),
        ("def f(each_x, y, *each_z):\n    return y", "def f(a, b, y):\n    return y"),
        ("def entry(\n    each_x, y, z\n):\n    pass", "def entry(b, z):\n\n\n    pass"),
        ('"""each_x is a pack."""', '"""each_x is a pack."""'),
    ],
)
def test_a_statement_is_repeated_for_each_item_and_keeps_its_lines(source: str, expanded: str) -> None:
    assert expand(source, PACKS, "entry", {"b", "z"}) == expanded
    assert expanded.count("\n") == source.count("\n")


def test_packs_of_different_lengths_and_unknown_packs_are_refused() -> None:
    with pytest.raises(ValueError, match="the packs have different numbers of items: each_x = each_three"):
        expand("each_x = each_three", PACKS)
    with pytest.raises(KeyError, match="each_other"):
        expand("each_other = 1", PACKS)


def test_loading_kernels_changes_no_tree_that_other_kernels_share(monkeypatch: pytest.MonkeyPatch) -> None:
    definitions: list[Definition] = []
    parsed = instance._parsed.__wrapped__

    def recorded(*arguments: Any) -> Any:
        module = parsed(*arguments)
        definitions.extend(module.definitions)
        return module

    monkeypatch.setattr(instance, "_parsed", functools.cache(recorded))
    for name in plan_records.kernel_names():
        call = Question("", name, "float32", (64, 781), -1).call
        for config in (KernelConfig("whole_row", 4, 1024), KernelConfig("column_loop", 1, 256)):
            compiler.source(call.specialize(config))
    assert len(definitions) > 100
    for definition in definitions:
        for node in nodes_in(definition.tree):  # a constant is None in all kernels, or in none
            noted = vars(node).keys() - {*node._fields, *node._attributes}
            assert not noted or isinstance(node, ast.Constant), (definition.tree.name, ast.unparse(node), noted)


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str, str], None]]:
    """edit(module, old, new) edits a copy of a module of kernels, which the loader then reads."""
    pytest.importorskip("triton")

    def edit_copy(module: str, old: str, new: str) -> None:
        shutil.copytree(kernels.__path__[0], tmp_path / "kernels")
        file = tmp_path / "kernels" / f"{module}.py"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
        monkeypatch.setattr(kernels, "__path__", [str(tmp_path / "kernels")])
        compiler._entry.cache_clear()

    yield edit_copy
    compiler._entry.cache_clear()


def test_the_loader_refuses_a_name_that_does_not_exist(edit: Callable[[str, str, str], None]) -> None:
    edit("tiles", "row < rows_left(inner, first)", "row < rows_felt(inner, first)")
    with pytest.raises(NameError, match=r"tiles\.py uses names that do not exist: rows_felt"):
        compiler.entry(kernel_call().specialize(WHOLE_ROW))


def test_a_changed_derived_constant_changes_the_hash(edit: Callable[[str, str, str], None]) -> None:
    config = replace(WHOLE_ROW, exp2_bias=1e-8)  # REFINE decides how its error is corrected
    before = compiler.entry(kernel_call().specialize(config)).cache_key
    edit("whole_row", "REFINE = COLS >= 128", "REFINE = COLS >= 2048")
    assert compiler.entry(kernel_call().specialize(config)).cache_key != before


def test_kernels_with_other_constants_or_functions_never_share_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    op = make_kernel(tmp_path, monkeypatch)
    edited = make_kernel(tmp_path, monkeypatch, square="def square(x):\n    return x * x * 2.0")
    calls: list[Any] = [(kernel_call(kernel=kernel, parameters=(1e-3,)), WHOLE_ROW) for kernel in (op, edited)]
    calls += [(calls[0][0], replace(WHOLE_ROW, rows=2)), (calls[0][0], replace(WHOLE_ROW, persistent=False))]
    specializations = [call.specialize(config) for call, config in calls]
    keys = [compiler.entry(specialization).cache_key for specialization in specializations]
    assert len(set(keys)) == len(keys)
    code = [compiler.compile_kernel(specialization, SM_90).asm["ptx"] for specialization in specializations[:3]]
    assert len({text.partition("//")[2] for text in code}) == 3


def test_unmasked_terms_divide_by_one_in_a_part_without_elements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `peel`, 257 columns are a head and a tail, and an aligned part that may be shorter than 256 columns."""
    share = "def share(x, count):\n    return x / count"
    rebase = "def rebase(shares, part_count, count):\n    return shares * part_count / count"
    statistics = Statistic("squares", "sum", "square"), Statistic("shares", "sum", "share", rebase="rebase")
    unmasked = replace(make_kernel(tmp_path, monkeypatch, share=share, rebase=rebase), statistics=statistics)
    config = KernelConfig("cooperative", 1, 128, programs_per_row=3, peel=True)
    for kernel, clamps in ((unmasked, 1), (replace(unmasked, neutral_padding=False), 0)):
        call = kernel_call((64, 257), kernel=kernel, parameters=(1e-3,))
        assert compiler.source(call.specialize(config)).count("count = tl.maximum(count, 1.0)") == clamps


def test_functions_have_the_file_and_the_lines_of_the_schedule() -> None:
    pytest.importorskip("triton")
    code = compiler.entry(kernel_call().specialize(WHOLE_ROW)).fn.__code__
    file = Path(kernels.__path__[0], "whole_row.py")
    assert os.path.normpath(code.co_filename) == str(file)
    lines = file.read_text().splitlines()
    assert lines[code.co_firstlineno - 1] == "@triton.jit"
    assert lines[code.co_firstlineno].startswith("def whole_row(")
