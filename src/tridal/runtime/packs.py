"""Expands the packs in the source of a schedule. It needs the standard library only, so the exchange model can load it.

A pack is a name that begins with `each_`. It stands for a number of items: names of variables, or expressions. A simple
statement is repeated for each item of the packs in it, and becomes `pass` if they have none. A starred pack becomes all
of its items, as does a pack in a `def`. The text keeps its lines:

    each_element = tl.load(each_ptr, mask)    ->  x = tl.load(x_ptr, mask); dy = tl.load(dy_ptr, mask)
    def whole_row(each_ptr, cols):            ->  def whole_row(x_ptr, dy_ptr, cols):
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

Packs = Mapping[str, tuple[str, ...]]
_PACK, _STARRED = re.compile(r"\beach_\w+"), re.compile(r"(, )?\*(each_\w+)")
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)


def expand(source: str, packs: Packs, entry: str = "", parameters: Collection[str] = ()) -> str:
    """Returns the source of a module with its packs expanded. The function `entry` keeps only these parameters.

    Raises:
        KeyError: a pack is unknown.
        ValueError: packs in a statement have different numbers of items.
    """
    lines = source.split("\n")
    for first, last, found in _places(source):
        if isinstance(found, str):
            _replace(lines, first, last, _repeated(found, packs))
        elif found.name == entry or found.variadic:
            names = [n for name in found.arguments for n in (packs[name] if _PACK.match(name) else (name,))]
            left = [name for name in names if found.name != entry or name in parameters]
            _replace(lines, first, last, f"def {found.name}({', '.join(left)}):")
    return "\n".join(lines)


class _Signature(NamedTuple):
    """The name and the arguments of a `def`."""

    name: str
    arguments: list[str]
    variadic: bool
    """Whether one argument stands for any number of arguments."""


@functools.lru_cache(maxsize=64)
def _places(source: str) -> list[tuple[int, int, str | _Signature]]:
    """Returns the first and the last line of each statement with a pack, with its text.

    Also returns those of each `def`, up to its colon, with its signature.
    """
    lines, found = source.split("\n"), list[tuple[int, int, str | _Signature]]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.args, *filter(None, [node.args.vararg]), *node.args.kwonlyargs]
            names = [a.arg if _PACK.match(a.arg) else ast.unparse(a) for a in arguments]
            signature = _Signature(node.name, names, node.args.vararg is not None)
            found.append((node.lineno, node.body[0].lineno - 1, signature))
        elif isinstance(node, _SIMPLE) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            text = " ".join(" ".join(lines[node.lineno - 1 : node.end_lineno]).split()).partition(" # ")[0]
            if _PACK.search(text):
                found.append((node.lineno, node.end_lineno or 0, text))
    return found


def _replace(lines: list[str], first: int, last: int, text: str) -> None:
    """Replaces lines, which are counted from 1, by one line with their indentation and empty ones."""
    indentation = lines[first - 1][: -len(lines[first - 1].lstrip())]
    lines[first - 1 : last] = [indentation + text, *[""] * (last - first)]


def _repeated(statement: str, packs: Packs) -> str:
    statement = _STARRED.sub(lambda m: (m[1] or "") * bool(packs[m[2]]) + ", ".join(packs[m[2]]), statement)
    lengths = {len(packs[name]) for name in _PACK.findall(statement)}
    if len(lengths) > 1:
        raise ValueError(f"the packs have different numbers of items: {statement}")
    items = range(lengths.pop()) if lengths else (0,)
    return "; ".join(_PACK.sub(lambda pack, i=i: packs[pack[0]][i], statement) for i in items) or "pass"  # type: ignore[misc]
