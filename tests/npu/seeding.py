"""Seeds a fault into the text that a schedule writes, or into one Triton function. An edit must change something."""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import triton

import tridal
from tridal.kernels.function_caches import forget_functions
from tridal.kernels.row_kernel import RowKernel
from tridal.kernels.written import WrittenKernel
from tridal.testing.cases import Case

SCHEDULES = ("whole_row", "column_loop")
_PACKAGE = Path(tridal.__file__).parent
MODULES = {
    path.stem: ".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts)
    for path in (_PACKAGE / "kernels/numerics.py", *sorted(_PACKAGE.glob("library/*/kernels/[!_]*.py")))
}
"""The full name of each module with functions of ops, by its last part."""


class EditError(Exception):
    """An edit no longer applies."""


class Mutant(NamedTuple):
    """A fault."""

    place: str
    """"whole_row" or "column_loop", the texts that a schedule writes; "kernel", those of both; a file whose functions
    they call; or a function of one of `MODULES`, for example "softmax.rebase"."""
    fault: str
    old: str
    """For a function, an expression. For a text, a regular expression: `ast.unparse` has written it."""
    new: str
    """The expression, or the template, that replaces each `old`."""
    kernels: tuple[str, ...] = ("softmax",)
    case: Case | None = None
    """The case of the conformance suite that finds it."""

    def __str__(self) -> str:
        return f"{self.place}: {self.fault}"

    @property
    def module(self) -> str:
        return self.place.partition(".")[0]

    def edit(self, name: str, text: str) -> str:
        """Returns the text of a schedule or of a file of this name, with the fault if it is the mutant's place."""
        is_place = self.place == name or (self.place == "kernel" and name in SCHEDULES)
        return re.sub(self.old, self.new, text, flags=re.MULTILINE) if is_place else text

    def edit_function(self, text: str) -> str:
        """Returns the text of the function with the fault. Raises EditError if it does not have the expression."""
        tree, old = ast.parse(text), ast.unparse(ast.parse(self.old))
        replace = _Replace(old, self.new)
        edited = ast.unparse(replace.visit(tree))
        if not replace.count:
            raise EditError(f"{self}: found no {old}")
        return edited


class _Replace(ast.NodeTransformer):
    def __init__(self, old: str, new: str) -> None:
        self.old, self.new, self.count = old, new, 0

    def visit(self, node: ast.AST) -> ast.AST:
        is_value = isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", None), ast.Store)
        if is_value and ast.unparse(node) == self.old:
            self.count += 1
            return ast.parse(self.new, mode="eval").body
        return self.generic_visit(node)


@contextlib.contextmanager
def seeded(mutant: Mutant) -> Iterator[None]:
    """Compiles and executes kernels with a fault.

    Raises:
        EditError: the edit does not apply to the function, or to any kernel that was written.
    """
    forget_functions()
    try:
        with _edited_function(mutant) if mutant.module in MODULES else _edited_texts(mutant):
            yield
    finally:
        forget_functions()


def _edit(mutant: Mutant, entry: str, written: WrittenKernel) -> bool:
    """Edits the texts of a kernel. Returns whether one of them changed."""
    texts = {name: ast.unparse(ast.parse(text)) for name, text in ((entry, written.text), *written.helpers.items())}
    edited = {name: mutant.edit(name, text) for name, text in texts.items()}
    written.text, written.helpers = edited[entry], {name: edited[name] for name in written.helpers}
    return edited != texts


@contextlib.contextmanager
def _edited_texts(mutant: Mutant) -> Iterator[None]:
    write, changed = WrittenKernel.__init__, False

    def write_with_fault(self: WrittenKernel, kernel: RowKernel, entry: str, *given: Any) -> None:
        nonlocal changed
        write(self, kernel, entry, *given)
        if kernel.name in mutant.kernels:
            changed |= _edit(mutant, entry, self)

    with mock.patch.object(WrittenKernel, "__init__", write_with_fault):
        yield
    if not changed:
        raise EditError(f"{mutant}: found no {mutant.old}")


@contextlib.contextmanager
def _edited_function(mutant: Mutant) -> Iterator[None]:
    module, _, name = mutant.place.partition(".")
    function = getattr(importlib.import_module(MODULES[module]), name)
    source = function.src
    _set_source(function, mutant.edit_function(source))
    try:
        yield
    finally:
        _set_source(function, source)


def _set_source(function: Any, source: str) -> None:
    """Replaces the text that Triton compiles. Functions that call it have another hash, too."""
    function.src = source
    for module in [sys.modules[name] for name in MODULES.values() if name in sys.modules]:
        for found in vars(module).values():
            if isinstance(found, triton.JITFunction):
                found.hash = None
