"""Writes the folded functions of a kernel: on the lines of their files for the compiler, or together for a reader."""

from __future__ import annotations

import ast
import io
import textwrap
import tokenize
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from tridal.runtime.constant_nodes import literal
from tridal.runtime.triton_functions import Function

_WIDTH = 78
"""Columns of the text for a reader."""


def on_lines(functions: Sequence[Function], note: str = "") -> str:
    """Returns the text of functions of one file, on the lines of the file. The last `def` ends with a note."""
    text: list[str] = []
    for function in functions:
        for number, indentation, code in _statements(function, note if function is functions[-1] else ""):
            text += [""] * (number - len(text))
            separator = "" if not text[number - 1] else " " if text[number - 1].endswith(":") else "; "
            text[number - 1] += (separator or indentation * "    ") + code
    return "\n".join(text) + "\n"


def in_one_text(functions: Sequence[Function], names: dict[str, Any]) -> str:
    """Returns the text of all functions of a kernel, with the imports that they need. `names` are the other globals."""
    imports = ["import triton", "import triton.language as tl"]
    for name, value in names.items():
        if (found := _definition(name, value)) not in imports:
            imports.append(found)
    parts = ["\n".join(imports)]
    for function in functions:
        lines = [line for _, depth, code in _statements(function, "") for line in _wrapped(code, "    " * depth)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _definition(name: str, value: Any) -> str:
    """Returns the line that defines a global name."""
    alias = f" as {name}"
    if isinstance(value, ModuleType):
        return f"import {value.__name__}{alias * (name != value.__name__)}"
    if (found := literal(value)) is not None:
        return f"{name} = {ast.unparse(found)}"
    return f"from {value.__module__} import {value.__name__}{alias * (name != value.__name__)}"


def _statements(function: Function, note: str) -> Iterator[tuple[int, int, str]]:
    """Yields the number of the line, the depth and the text of each statement, header and comment of a function."""
    definition, tree = function.definition, function.definition.tree
    yield tree.decorator_list[0].lineno, 0, "@triton.jit(noinline=True)" if definition.noinline else "@triton.jit"
    parameters = ", ".join(map(ast.unparse, function.parameters))
    yield tree.lineno, 0, f"def {function.name}({parameters}):{note}"
    yield from _block(function.body, 1, definition.lines)


def _block(statements: Sequence[Any], depth: int, lines: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    last = 0
    for node in statements:
        first = node.lineno - 1
        while first > last and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        yield from ((number + 1, depth, lines[number].strip()) for number in range(first, node.lineno - 1))
        last = node.lineno
        if isinstance(node, (ast.If, ast.For, ast.While)) and (isinstance(node, ast.If) or not node.orelse):
            yield from _compound(node, depth, lines)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            yield last, depth, f"{_plain(node.targets[0])} = {_plain(node.value)}"
        elif isinstance(node, ast.Return) and node.value is not None:
            yield last, depth, f"return {_plain(node.value)}"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield last, depth, f'"""{node.value.value}"""'
        else:
            for number, line in enumerate(ast.unparse(node).split("\n"), last):
                yield number, depth + (len(line) - len(line.lstrip())) // 4, line.strip()


def _compound(node: Any, depth: int, lines: Sequence[str], word: str = "if") -> Iterator[tuple[int, int, str]]:
    if isinstance(node, ast.For):
        yield node.lineno, depth, f"for {_plain(node.target)} in {ast.unparse(node.iter)}:"
    else:
        yield node.lineno, depth, f"{word if isinstance(node, ast.If) else 'while'} {ast.unparse(node.test)}:"
    yield from _block(node.body, depth + 1, lines)
    if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        yield from _compound(node.orelse[0], depth, lines, "elif")
    elif node.orelse:
        inner = (part for statement in node.body for part in ast.walk(statement))
        before = max(part.lineno for part in inner if isinstance(part, ast.stmt))
        after = node.orelse[0].lineno
        words = (number for number in range(before + 1, after + 1) if lines[number - 1].lstrip().startswith("el"))
        yield next(words, after), depth, "else:"
        yield from _block(node.orelse, depth + 1, lines)


def _plain(node: ast.expr) -> str:
    """Returns an expression. All versions of Python write tuples alike then. Only long targets have parentheses."""
    if not isinstance(node, ast.Tuple) or len(node.elts) < 2:
        return ast.unparse(node)
    text = ", ".join(map(ast.unparse, node.elts))
    return f"({text})" if isinstance(node.ctx, ast.Store) and len(text) > _WIDTH // 2 else text


def _wrapped(code: str, indentation: str) -> Iterator[str]:
    """Yields the lines of a statement, which is broken within parentheses if it is too long."""
    if code.startswith(("#", '"""')):
        following = indentation + "# " * code.startswith("#")
        yield from textwrap.wrap(code, _WIDTH, initial_indent=indentation, subsequent_indent=following)
        return
    depth, breaks, start, space = 0, list[tuple[bool, int]](), 0, indentation
    fits = len(indentation) + len(code) <= _WIDTH
    for token in () if fits else tokenize.generate_tokens(io.StringIO(code + "\n").readline):
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
            breaks += [(token.string == ",", token.end[1])] * (depth > 0 and token.string in ",(")
    while len(space) + len(code) - start > _WIDTH and (breaks := [found for found in breaks if found[1] > start]):
        _, end = max((found for found in breaks if len(space) + found[1] - start <= _WIDTH), default=breaks[0])
        yield space + code[start:end]
        start = end + code[end:].startswith(" ")
        space = indentation + "    " * (2 if code.endswith(":") else 1)
    yield space + code[start:]
