"""Loads a schedule for one kernel: packs are expanded, and constants and the op's functions are folded into its text.

A module of `tridal.kernels` that a schedule imports is loaded with it. It derives further constants in plain Python.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import importlib
import itertools
import linecache
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from tridal.runtime.folding import Folding
from tridal.runtime.interpreter_mode import load_interpreted
from tridal.runtime.op_functions import constants_of, maths_of, packs_of
from tridal.runtime.packs import expand
from tridal.runtime.pruning import Pruning
from tridal.runtime.row_kernel import RowKernel
from tridal.runtime.source_text import in_one_text, on_lines
from tridal.runtime.triton_functions import Definition, Function

_PACKAGE = "tridal.kernels."


class Instance:
    """The functions of a schedule for one kernel."""

    def __init__(self, kernel: RowKernel, entry: str, arguments: frozenset[str], constants: dict[str, Any]) -> None:
        """`arguments` are the run-time arguments of the kernel, and `constants` those of its specialization.

        Raises:
            NameError: a function of a schedule uses a name that does not exist.
        """
        import triton.language as tl

        self._kernel, self._entry, self._arguments = kernel, entry, arguments
        self._constants = constants | constants_of(kernel)
        if "ACC_DTYPE" in constants:
            self._constants["ACC_DTYPE"] = {"fp32": tl.float32, "fp64": tl.float64}[constants["ACC_DTYPE"]]
        self._modules: dict[str, dict[str, Any]] = {}
        folding = Folding(self._module(entry)[entry])
        self._functions, self._globals = Pruning(folding.functions).functions, folding.globals

    def _module(self, name: str) -> dict[str, Any]:
        """Returns what the names in a module stand for."""
        if name not in self._modules:
            folder = importlib.import_module(_PACKAGE[:-1]).__path__[0]  # here: `import tridal` loads no schedule
            file, arguments = Path(folder, f"{name}.py"), self._arguments if name == self._entry else None
            source, packs = file.read_text(), packs_of(self._kernel)
            module = _parsed(file, expand(source, packs, "" if arguments is None else name, arguments or ()))
            names = {
                "__name__": _PACKAGE + name,
                "maths": maths_of(self._kernel),
                **self._constants,
            }
            for imported, taken in module.imports:
                names |= {name: self._module(imported)[name] for name in taken}
            exec(module.others, names)
            names |= {definition.tree.name: Function(definition, names, True) for definition in module.definitions}
            if missing := module.needed - names.keys() - vars(builtins).keys():
                raise NameError(f"{file} uses names that do not exist: {', '.join(sorted(missing))}")
            self._modules[name] = names
        return self._modules[name]

    @property
    def text(self) -> str:
        """The source of the kernel, which runs alone."""
        return in_one_text(self._functions, self._globals)

    def load(self) -> Any:
        """Returns the Triton function of the kernel, whose functions have the files and lines of their sources."""
        import triton

        scope: dict[str, Any] = {"triton": triton, **self._globals}
        entry, used = self._functions[-1], hashlib.sha256(repr(sorted(scope.items(), key=str)).encode())
        for file, functions in self._files():
            # Triton 3.2 does not hash all that a function uses. All versions hash the comment with this hash.
            used.update((text := on_lines(functions)).encode())
            if entry in functions:
                text = on_lines(functions, f"  # {used.hexdigest()[:16]}")
            scope["__name__"] = functions[0].names["__name__"]
            exec(compile(text, _path(Path(file), text), "exec"), scope)
        return scope[entry.name]

    def load_interpreted(self) -> Any:
        """Returns the same function for Triton's interpreter."""
        scope, parts = dict(self._globals), list[tuple[str, str, list[str]]]()
        for file, functions in self._files():
            text = on_lines(functions)
            parts.append((text, _path(Path(file), text), [function.name for function in functions]))
        load_interpreted(parts, scope)
        return scope[self._functions[-1].name]

    def _files(self) -> Iterator[tuple[str, list[Function]]]:
        """Yields each file and the functions in it, in the order of their lines. The entry is the very last one."""
        *called, entry = self._functions
        called.sort(key=lambda function: (function.definition.file, function.definition.tree.lineno))
        for file, functions in itertools.groupby([*called, entry], lambda function: function.definition.file):
            yield file, [*functions]


class _Module(NamedTuple):
    """A module of schedules with the packs of a kernel."""

    definitions: list[Definition]
    imports: list[tuple[str, list[str]]]
    """The other modules of schedules, and what is imported from them."""
    others: CodeType
    """The other statements, which derive constants."""
    needed: set[str]
    """The names in the functions that are no local variables."""


@functools.lru_cache(maxsize=1024)
def _parsed(file: Path, text: str) -> _Module:
    """Returns a module whose packs are expanded. Kernels share those with the same text."""
    tree, lines = ast.parse(text), text.split("\n")
    definitions = [
        Definition(node, str(file), lines, isinstance(node.decorator_list[0], ast.Call))
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    ]
    own = [n for n in tree.body if isinstance(n, ast.ImportFrom) and str(n.module).startswith(_PACKAGE)]
    imports = [(str(node.module).removeprefix(_PACKAGE), [alias.name for alias in node.names]) for node in own]
    tree.body = [node for node in tree.body if node not in own and not isinstance(node, ast.FunctionDef)]
    needed = {name for definition in definitions for name, _ in definition.paths}
    return _Module(definitions, imports, compile(tree, str(file), "exec"), needed)


def _path(file: Path, text: str) -> str:
    """Returns the name of a file for a debugger and for `inspect`, which reads the text in the line cache.

    The name has a folder that does not exist, and which `os.path.normpath` and pdb remove.
    """
    folder = f"instance-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    path = str(file.parent / folder / ".." / file.name)
    if path not in linecache.cache:
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    return path
