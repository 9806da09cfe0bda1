"""Loads the source of a schedule for one kernel: constants and the op's functions are globals, and packs are expanded.

A module of `tridal.kernels` that a schedule imports is loaded with it. It derives further constants in plain Python.
Then all constants become constexprs, except for the interpreter, which needs plain values.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import importlib
import linecache
import re
from pathlib import Path
from typing import Any

from tridal.runtime.op_functions import constants_of, fingerprint, packs_of
from tridal.runtime.packs import expand
from tridal.runtime.row_kernel import RowKernel

_PACKAGE = "tridal.kernels."


class Instance:
    """The modules of a schedule for one kernel."""

    def __init__(
        self, kernel: RowKernel, entry: str, arguments: frozenset[str], constants: dict[str, Any], interpret: bool
    ) -> None:
        """`arguments` are the run-time arguments of the kernel, and `constants` those of its specialization."""
        import triton.language as tl

        self._kernel, self._entry, self._arguments = kernel, entry, arguments
        self._constants = constants | constants_of(kernel)
        if "ACC_DTYPE" in constants:
            self._constants["ACC_DTYPE"] = {"fp32": tl.float32, "fp64": tl.float64}[constants["ACC_DTYPE"]]
        self._as_constant = (lambda value: value) if interpret else tl.constexpr
        self._modules: dict[str, dict[str, Any]] = {}
        self._hash = hashlib.sha256(repr((sorted(constants.items(), key=str), fingerprint(kernel))).encode())

    def load(self, name: str) -> dict[str, Any]:
        """Returns the names of a module.

        Raises:
            NameError: a function uses a name that does not exist.
        """
        if name in self._modules:
            return self._modules[name]
        folder = importlib.import_module(_PACKAGE[:-1]).__path__[0]  # imported here: `import tridal` loads no schedule
        file, is_entry = Path(folder, f"{name}.py"), name == self._entry
        text, tree, imports, needed, derived = _parsed(file, self._kernel, self._arguments if is_entry else None)
        scope = {"__name__": _PACKAGE + name, "maths": importlib.import_module(self._kernel.module), **self._constants}
        for module, names in imports:
            scope |= {imported: self.load(module)[imported] for imported in names}
        self._hash.update(text.encode())
        if is_entry:
            # Triton 3.2 hashes neither constants nor functions among the globals. All versions hash this comment.
            text = re.sub(rf"(?m)^(def {name}\(.*\):)$", rf"\1  # {self._hash.hexdigest()[:16]}", text)
        exec(compile(tree, _path(file, text), "exec"), scope)
        if missing := needed - scope.keys() - vars(builtins).keys():
            raise NameError(f"{file} uses names that do not exist: {', '.join(sorted(missing))}")
        for constant in {*derived, *self._constants}:
            if not hasattr(scope[constant], "__triton_builtin__"):
                scope[constant] = self._as_constant(scope[constant])
        self._modules[name] = scope
        return scope


@functools.lru_cache(maxsize=1024)
def _parsed(
    file: Path, kernel: RowKernel, arguments: frozenset[str] | None
) -> tuple[str, ast.Module, list[tuple[str, list[str]]], set[str], set[str]]:
    """Returns a module's expanded source, its tree, its imports of others, and the names that it needs and derives.

    `arguments` are the run-time arguments of the entry. The tree does not have the imports.
    """
    text = file.read_text()
    text = expand(text, packs_of(kernel), "" if arguments is None else file.stem, arguments or ())
    tree = ast.parse(text)
    own = [n for n in tree.body if isinstance(n, ast.ImportFrom) and str(n.module).startswith(_PACKAGE)]
    imports = [(str(node.module).removeprefix(_PACKAGE), [alias.name for alias in node.names]) for node in own]
    tree.body = [node for node in tree.body if node not in own]
    needed: set[str] = set()
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        local = {a.arg for a in function.args.args} | {n.id for n in names if isinstance(n.ctx, ast.Store)}
        needed |= {name.id for name in names} - local
    assigned = (node for statement in tree.body if isinstance(statement, ast.Assign) for node in ast.walk(statement))
    derived = {node.id for node in assigned if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return text, tree, imports, needed, derived


def _path(file: Path, text: str) -> str:
    """Returns the name of a file for a debugger and for `inspect`, which reads the text in the line cache.

    If the text is not that of the file, the name has a folder that does not exist, and which pdb and tracebacks remove.
    """
    folder = f"instance-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    path = str(file if text == file.read_text() else file.parent / folder / ".." / file.name)
    if path not in linecache.cache:
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    return path
