"""What the commands print with: JSON for scripts, tables for people."""

from __future__ import annotations

import json
import os
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["FAIL", "PASS", "console", "count", "escape", "grid", "print_json", "size", "table"]

_LOG_WIDTH = 140  # columns where nobody's terminal sets a width
PASS, FAIL = "[green]ok[/]", "[bold red]FAILED[/]"


def print_json(data: Any) -> None:
    """One JSON document on stdout. What JSON has no number for (NaN, infinity) is null."""
    print(json.dumps(_finite(data), indent=2, default=str))


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if abs(data) < float("inf") else None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data


def console(stderr: bool = False) -> Console:
    """Where people read. Numbers and names are not coloured by guesswork, and logs are wide."""
    found = Console(stderr=stderr, highlight=False)
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found.width = _LOG_WIDTH
    return found


def grid(*styles: str) -> Table:
    """Columns without lines, for a few facts; `styles` of the columns."""
    table = Table.grid(padding=(0, 2))
    for style in styles:
        table.add_column(style=style, overflow="fold")
    return table


def table(*headings: str, right: tuple[str, ...] = ()) -> Table:
    """A table with headings; numbers in the columns named in `right`."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in headings:
        made.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return made


def size(number: int | None) -> str:
    """Bytes as people read them."""
    if number is None:
        return "?"
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= factor:
            return f"{number / factor:.4g} {unit}"
    return f"{number} bytes"


def count(number: int, thing: str) -> str:
    """ "1 row", "2 rows"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
