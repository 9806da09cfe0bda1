"""Tables of the fields of public types, generated from their docstrings, for docs/add-a-backend.md.

After a change of a docstring, write the tables again:

    python tests/helpers/field_tables.py
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

from tridal.devices import types

PAGE = Path(__file__).parents[2] / "docs" / "add-a-backend.md"
TABLE = re.compile(r"<!-- fields of (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def fields(name: str) -> list[tuple[str, str, str, str]]:
    """Returns (name, type, default, docstring) of each field of a class."""
    (definition,) = ast.parse(inspect.getsource(getattr(types, name))).body
    assert isinstance(definition, ast.ClassDef)
    found = []
    for field, docstring in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(docstring, ast.Expr):
            value = None if isinstance(field.value, ast.Call) else field.value  # a call is dataclasses.field()
            default = "" if value is None else f"`{ast.unparse(value)}`"
            text = inspect.cleandoc(ast.literal_eval(docstring.value))
            found.append((ast.unparse(field.target), ast.unparse(field.annotation), default, text))
    return found


def table(name: str) -> str:
    """Returns the table of a class, between its markers."""
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for field, kind, default, text in fields(name):
        cells = f"`{field}`", f"`{kind}`", default, " ".join(text.split())
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([f"<!-- fields of {name} -->", *rows, "<!-- end -->"])


def updated(page: str) -> str:
    """Returns the text of a page with all its tables generated again."""
    return TABLE.sub(lambda match: table(match[1]), page)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
