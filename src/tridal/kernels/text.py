"""The text of a kernel, which a schedule writes in blocks of Triton."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any

_WIDTH = 100
"""Columns of the text."""
_LAST = 100
"""Added to the number of parentheses of a place where a line is broken only if it has no other one."""
_CAPITALS = re.compile(r"( (?:[-+*]|//) )?\b([A-Z][A-Z0-9_]*)\b(?!=)")
_NEUTRAL = {(" * ", "1"), (" // ", "1"), (" + ", "0"), (" - ", "0")}


class Text:
    """Lines of Triton.

    A block is plain Triton. CAPITALS in it stand for constants or for names that differ between kernels::

        text("row = tile * ROWS")  # row = tile * 4, if the constant ROWS is 4
        text("X = tl.load(X_PTR)", X="dy", X_PTR="dy_ptr")  # dy = tl.load(dy_ptr)
        with text("if tile < tiles:"):  # indents the blocks within
            ...

    An operator before CAPITALS that stand for 1 (`*`, `//`) or 0 (`+`, `-`) is left out with them. Values are inserted
    as they are: a sum that becomes a factor needs parentheses. A name before `=` without spaces stays, because it is
    that of an argument: `f(x, AXIS=AXIS)`. Lines that begin with `#` stay as they are.
    """

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.constants, self.lines, self.depth = constants, list[str](), 0

    def __call__(self, block: str, **names: Any) -> Text:
        """Writes a block.

        Raises:
            KeyError: CAPITALS in the block stand for nothing.
        """

        def replaced(found: re.Match[str]) -> str:
            operator, name = found[1] or "", found[2]
            value = str(names[name] if name in names else self.constants[name])
            return "" if (operator, value) in _NEUTRAL else operator + value

        for line in textwrap.dedent(block).strip("\n").split("\n"):
            code = line if line.lstrip().startswith("#") else _CAPITALS.sub(replaced, line)
            self.lines += _wrapped("    " * self.depth + code)
        return self

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1

    def __str__(self) -> str:
        return "\n".join(self.lines) + "\n"


def _wrapped(line: str) -> list[str]:
    """Breaks a statement into lines, within as few parentheses as possible.

    The value of an assignment that has operators outside of parentheses gets parentheses.
    """
    assigned = re.match(r"(\s*\w+ = )(.+)", line)
    if len(line) > _WIDTH and assigned is not None:
        enclosed = f"{assigned[1]}({assigned[2]})"
        line = enclosed if any(depth == 1 and enclosed[at] != "," for at, depth in _breaks(enclosed)) else line
    breaks, lines, start = _breaks(line), list[str](), 0
    indentation = " " * (len(line) - len(line.lstrip()) + (8 if line.endswith(":") else 4))
    space = ""
    while len(space) + len(line) - start > _WIDTH:
        possible = [(depth, -at) for at, depth in breaks if start < at <= start + _WIDTH - len(space)]
        if not possible:
            break
        end = -min(possible)[1]
        lines.append(space + line[start:end].rstrip())
        space, start = indentation, end + (len(line[end:]) - len(line[end:].lstrip()))
    return [*lines, space + line[start:]]


def _breaks(line: str) -> list[tuple[int, int]]:
    """Finds the places where a line may be broken, and within how many parentheses each of them is."""
    depth, quoted, found = 0, False, list[tuple[int, int]]()
    for at, character in enumerate(line):
        quoted ^= character == '"'
        if not quoted:
            depth += (character in "([") - (character in ")]")
            if depth and (character == "," or line[at - 1 : at + 2] in (" + ", " & ", " * ")):
                found.append((at + 1 if character == "," else at, depth + (character == "*")))
            elif character == "(":
                found.append((at + 1, depth + _LAST))
    return found
