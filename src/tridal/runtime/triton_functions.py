"""The Triton functions of a kernel: the source of each, and what the names in it stand for."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from tridal.runtime.constant_nodes import UNKNOWN, nodes_in


class Definition:
    """The source of a function. Its tree is shared by all kernels, and is not changed."""

    def __init__(self, tree: ast.FunctionDef, file: str, lines: Sequence[str], noinline: bool) -> None:
        self.tree, self.file, self.lines, self.noinline = tree, file, lines, noinline
        nodes = nodes_in(tree)
        names = [node for node in nodes if isinstance(node, ast.Name)]
        self.stored = [name.id for name in names if not isinstance(name.ctx, ast.Load)]
        self.local = {*self.stored, *(node.arg for node in nodes if isinstance(node, ast.arg))}
        paths = [(name.id, "") for name in names]
        paths += [(n.value.id, n.attr) for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
        self.paths = [path for path in dict.fromkeys(paths) if path[0] not in self.local]
        """The names that are not local variables, with the attribute that is read or with an empty string."""


@functools.lru_cache(maxsize=1024)
def definition_of(function: Any) -> Definition:
    """Returns the definition of a function that Triton has decorated."""
    python = inspect.unwrap(function.fn)
    lines, first = inspect.getsourcelines(python)
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    ast.increment_lineno(tree, first - 1)
    text = [""] * (first - 1) + [line.rstrip("\n") for line in lines]
    return Definition(tree, python.__code__.co_filename, text, bool(getattr(function, "noinline", False)))


class Function:
    """A Triton function of one kernel: its definition, what the names in it stand for, and its folded form."""

    def __init__(self, definition: Definition, names: Mapping[str, Any], is_own: bool) -> None:
        """`is_own`: whether it is a function of a schedule, whose names are all known, and plain numbers constants."""
        self.definition, self.names, self.is_own = definition, names, is_own
        self.name = definition.tree.name
        arguments = definition.tree.args
        self.parameters, self.body = [*arguments.args], list[ast.stmt]()
        self.calls: list[ast.Call] = []
        """All calls of it, with an argument for each parameter."""
        self.fixed = bool(arguments.defaults or arguments.kwonlyargs or arguments.vararg or arguments.kwarg)
        """Whether its parameters stay, because they have defaults, or because it is used in other ways."""
        self.constants: dict[str, ast.expr] = {}
        self.not_none: set[str] = set()
        self.kept: set[tuple[Any, ...]] = set()
        """The kinds of arguments with which calls stay calls."""

    def find(self, name: str, attribute: str = "") -> Any:
        """Returns what a name that is not local stands for, or an attribute of such a module that is not Triton's."""
        found = UNKNOWN if name in self.definition.local else self.names.get(name, UNKNOWN)
        if not attribute:
            return found
        is_module = isinstance(found, ModuleType) and not is_tritons(found.__name__)
        return getattr(found, attribute, UNKNOWN) if is_module else UNKNOWN


def is_tritons(module: str) -> bool:
    """Returns whether a module belongs to Triton."""
    return f"{module}.".startswith("triton.")
