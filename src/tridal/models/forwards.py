"""Makes functions like that of a forward: with other globals, inside the same decorators, or of changed source."""

from __future__ import annotations

import ast
import functools
import inspect
import tokenize
import types
from collections.abc import Mapping
from typing import Any

from tridal.models.reads import names_in


def copy_function(function: types.FunctionType, code: types.CodeType, names: dict[str, Any], closure: Any) -> Any:
    """Returns a function with other code, globals and closure."""
    copy = types.FunctionType(code, names, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(copy, function)


def decorated(function: Any, inner: Any, made: Any) -> Any:
    """Returns `function` with `made` instead of the function `inner` inside its decorators, or None.

    Decorators keep the function that they call in their closure, and `functools.wraps` makes it their `__wrapped__`.
    """
    if function is inner:
        return made
    wrapped = function.__wrapped__
    new = decorated(wrapped, inner, made)
    cells = function.__closure__ or () if isinstance(function, types.FunctionType) else ()
    if new is None or all(cell.cell_contents is not wrapped for cell in cells):
        return None
    closure = tuple(types.CellType(new) if cell.cell_contents is wrapped else cell for cell in cells)
    copy = copy_function(function, function.__code__, function.__globals__, closure)
    copy.__wrapped__ = new
    return copy


@functools.cache
def definition(function: types.FunctionType) -> ast.FunctionDef | None:
    """Returns the syntax tree of a function, or None if its source cannot be read or is not that of its code.

    The source of a file may have changed since Python imported it.
    """
    try:
        lines, first = inspect.getsourcelines(function)
        indented = lines[0][:1].isspace()
        tree = ast.parse("if True:\n" * indented + "".join(lines))
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return None
    ast.increment_lineno(tree, first - 1 - indented)
    node, *_ = tree.body[0].body if indented else tree.body  # type: ignore[attr-defined]
    if not isinstance(node, ast.FunctionDef):
        return None
    return node if _is_same(_code(function, node, ()), function.__code__) else None


def compiled(function: types.FunctionType, node: ast.FunctionDef, added: Mapping[str, Any]) -> Any:
    """Returns a function with the globals and closure of another one, and the code of a syntax tree.

    The tree may use further names, whose values are given.
    """
    code = _code(function, node, tuple(added))
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells |= {name: types.CellType(value) for name, value in added.items()}
    return copy_function(function, code, function.__globals__, tuple(cells[name] for name in code.co_freevars))


def _code(function: types.FunctionType, node: ast.FunctionDef, added: tuple[str, ...]) -> types.CodeType:
    """Compiles a function inside another one, whose arguments are the variables of its closure.

    Python compiles calls of methods of imported names in another way, so names that seem imported are imported.
    """
    names, own = function.__globals__, function.__module__
    used = {name: names[name] for name in names_in(function) if name in names}
    defined = (type, types.FunctionType)
    imported = {n for n, v in used.items() if inspect.ismodule(v) or (isinstance(v, defined) and v.__module__ != own)}
    imports = "".join(f"import {name}\n" for name in imported)
    tree = ast.parse(f"{imports}def outer({', '.join((*function.__code__.co_freevars, *added))}): pass")
    outer: Any = tree.body[-1]
    outer.body, node.decorator_list = [node], []
    code = compile(ast.fix_missing_locations(tree), function.__code__.co_filename, "exec", dont_inherit=True)
    for _ in range(2):
        code = next(const for const in code.co_consts if isinstance(const, types.CodeType))
    return code


def _is_same(a: Any, b: Any) -> bool:
    """Returns whether two constants, or the code of two functions, are the same apart from the numbers of lines."""
    if not isinstance(a, types.CodeType) or not isinstance(b, types.CodeType):
        return type(a) is type(b) and bool(a == b)
    names = ("co_code", "co_names", "co_varnames", "co_freevars")
    same = all(getattr(a, name) == getattr(b, name) for name in names) and len(a.co_consts) == len(b.co_consts)
    return same and all(map(_is_same, a.co_consts, b.co_consts))
