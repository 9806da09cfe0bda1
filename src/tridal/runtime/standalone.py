"""Prints a written kernel with all functions that it calls: first the kernel, then those of the op, then tridal's.

The text runs without tridal. Functions of several modules are in one scope, so one of two things with the same name
gets another one.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from tridal.kernels.function_errors import called_functions
from tridal.kernels.op_functions import triton_functions
from tridal.kernels.row_kernel import RowKernel
from tridal.kernels.text_plan import literal
from tridal.kernels.written import WrittenKernel

_IMPORTS = ("import triton", "import triton.language as tl")
_OP_MATH = 'op_math = types.ModuleType("op_math")  # the functions of the op, which follow the kernel'


def standalone(kernel: RowKernel, written: WrittenKernel) -> str:
    """Prints a kernel that runs alone."""
    helpers = _needed(written.text, written.helpers)
    text, names = written.text, _Names([written.text, *helpers.values()], written.constants)
    of_op = _called(kernel, text)  # its module may have them from other modules
    called = [python for _, python in called_functions(reversed(of_op))]
    called.sort(key=lambda python: python.__module__ != kernel.module)
    imports, sections = [*_IMPORTS], dict[str, list[str]]()
    for python in called:
        source, section = textwrap.dedent(inspect.getsource(python)).strip(), sections.setdefault(python.__module__, [])
        new_names = dict[str, str]()
        for name, value in _globals_of(python, source):
            new_names[name] = new = names.of(name, value)
            if name == python.__name__ and any(value is function for function in of_op):
                text = _renamed(text, {f"op_math.{name}": f"op_math.{new}"})
            line = _definition(new, value)
            if line is not None and line not in imports and line not in section:
                (imports if line.startswith(("import ", "from ")) else section).insert(0, line)
        section.append(_renamed(source, new_names))
    uses_op_math = "op_math." in text
    parts = ["\n".join(["import types\n", *imports, "", _OP_MATH] if uses_op_math else imports), text.rstrip()]
    for module, sources in sections.items():
        parts.append("\n\n\n".join([f"# Functions of {module}.", *sources]))
    constants = [f"{name} = tl.constexpr({literal(value)})" for name, value in written.constants.items()]
    parts += ["\n".join(["# The plan, for the functions of tridal.kernels below.", *constants])] * bool(constants)
    parts += [f"# Functions of tridal.kernels.{name}.\n\n\n{source}" for name, source in helpers.items()]
    parts += ["vars(op_math).update(globals())"] * uses_op_math
    return "\n\n\n".join(parts) + "\n"


class _Names:
    """The global names of a text, one for each thing."""

    def __init__(self, texts: list[str], constants: Iterable[str]) -> None:
        """`texts` have the functions that keep their names."""
        own = re.findall(r"(?m)^(?:def )?(\w+)(?:\(| = )", "\n".join(texts))
        self._taken = {"triton", "tl", "op_math", "types", *constants, *own}
        self._given: list[tuple[Any, str]] = []

    def of(self, name: str, value: Any) -> str:
        """Returns the name of a value: that of a function, or `name`, unless something else has it."""
        for known, given in self._given:
            if known is value:
                return given
        new = getattr(value, "__name__", name) if hasattr(value, "arg_names") else name
        while new in self._taken:
            new += "_"
        self._taken.add(new)
        self._given.append((value, new))
        return new


def _called(kernel: RowKernel, text: str) -> list[Any]:
    """Finds the functions of the op that a kernel calls."""
    return [function for function in triton_functions(kernel) if f"op_math.{function.__name__}(" in text]


def _needed(text: str, helpers: Mapping[str, str]) -> dict[str, str]:
    """Finds the parts of files that a kernel needs: their constants, and the functions that are called."""
    trees = {name: ast.parse(source).body for name, source in helpers.items()}
    functions = [node for body in trees.values() for node in body if isinstance(node, ast.FunctionDef)]
    calls, kept = {function.name: ast.unparse(function) for function in functions}, set[str]()
    pending = [text]
    while pending:
        new = (set(re.findall(r"\w+", pending.pop())) & calls.keys()) - kept
        kept |= new
        pending += [calls[name] for name in new]
    found = {}
    for name, source in helpers.items():
        lines, parts = source.split("\n"), list[str]()
        for node in trees[name]:
            if isinstance(node, ast.Assign) or (isinstance(node, ast.FunctionDef) and node.name in kept):
                first = min(n.lineno for n in (node, *getattr(node, "decorator_list", ())))
                parts += ["\n"] * (isinstance(node, ast.FunctionDef) and bool(parts))
                parts.append("\n".join(lines[first - 1 : node.end_lineno]))
        found[name] = "\n".join(parts)
    return found


def _globals_of(python: FunctionType, source: str) -> Iterator[tuple[str, Any]]:
    """Yields the global names in the source of a function, its own one included, and their values."""
    nodes = [*ast.walk(ast.parse(source))]
    local = {node.arg for node in nodes if isinstance(node, ast.arg)}
    local |= {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)} - local - {"triton", "tl"} | {python.__name__}
    for name in sorted(names & python.__globals__.keys()):
        yield name, python.__globals__[name]


def _renamed(source: str, names: Mapping[str, str]) -> str:
    """Returns a source with other names, all replaced at once, but not those of attributes and of named arguments."""
    pattern = rf"(?<![\w.])({'|'.join(map(re.escape, names))})\b(?! ?=[^=])"
    return re.sub(pattern, lambda name: names[name[1]], source) if names else source


def _definition(name: str, value: Any) -> str | None:
    """The line that defines a name, or None for a Triton function, whose source is in the text."""
    alias = f" as {name}"
    if isinstance(value, ModuleType):
        return f"import {value.__name__}{alias * (name != value.__name__)}"
    if hasattr(value, "arg_names") and not value.__module__.startswith("triton."):
        return None
    if type(value).__name__ == "constexpr":
        return f"{name} = tl.constexpr({literal(value.value)})"
    if isinstance(value, (bool, int, float, str, type(None))):
        return f"{name} = {literal(value)}"
    return f"from {value.__module__} import {value.__name__}{alias * (name != value.__name__)}"
