"""Output of the commands: stdout for it alone, JSON, tables, progress, and errors in one sentence."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from typing import Any, TextIO, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

__all__ = [
    "FAIL", "PASS", "console", "count", "escape", "grid", "print_json", "size", "table", "track",
]  # fmt: skip

_T = TypeVar("_T")
_BROKEN_PIPE = 141  # exit code of a process that SIGPIPE ends
_FILE_WIDTH = 120  # width of tables in a file or a pipe
PASS, FAIL = "[green]ok[/]", "[bold red]FAILED[/]"
_own: ContextVar[TextIO | None] = ContextVar("tridal_stdout", default=None)


def stdout() -> TextIO:
    """The stream to which the command writes its output."""
    return _own.get() or sys.stdout


@contextmanager
def reserved() -> Iterator[None]:
    """Redirects `sys.stdout` to stderr in the block, so that what plugins print is not in the command's output."""
    token = _own.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _own.reset(token)


def reserve_descriptor() -> None:
    """Lets the file descriptor of stdout, to which C libraries and child processes write, be that of stderr.

    `sys.stdout` gets a new descriptor. Does nothing if a test or a notebook has replaced `sys.stdout`.
    """
    before = sys.__stdout__
    if before is not None and before is sys.stdout and sys.stderr is not None:
        sys.stdout = os.fdopen(os.dup(1), "w", encoding=before.encoding, errors=before.errors)
        os.dup2(sys.stderr.fileno(), 1)


def print_error(message: str) -> None:
    """Prints a message on stderr, each line with the name of the program. Ignores a stderr that cannot be written."""
    with suppress(OSError):
        print(*(f"tridal: {line}" for line in message.splitlines()), sep="\n", file=sys.stderr, flush=True)


@contextmanager
def file_errors() -> Iterator[None]:
    """Ends the program with one sentence and exit code 1 if its output or a file cannot be written or read.

    If the reader of a pipe has ended, as `head` does, prints nothing.
    """
    before = sys.stdout  # click replaces it by one that ignores a broken pipe
    try:
        try:
            yield
        finally:
            if before is not None:
                before.flush()
    except OSError as error:
        if before is not None:
            _discard_output(before)
        if isinstance(error, BrokenPipeError):
            raise SystemExit(_BROKEN_PIPE) from None
        what = "the output cannot be written" if error.filename is None else error.filename
        print_error(f"{what}: {error.strerror or error}")
        raise SystemExit(1) from None


def _discard_output(stream: TextIO) -> None:
    """Redirects stdout to the null device if it cannot be written, because Python flushes it again when it ends."""
    try:
        stream.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def print_json(data: Any) -> None:
    """Prints one JSON document to stdout. NaN and infinity become null, because JSON does not have them."""
    print(json.dumps(_replace_non_finite(data), indent=2, default=str), file=stdout())


def _replace_non_finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if abs(data) < float("inf") else None
    if isinstance(data, dict):
        return {key: _replace_non_finite(value) for key, value in data.items()}
    return [_replace_non_finite(value) for value in data] if isinstance(data, list | tuple) else data


def console(stderr: bool = False, quiet: bool = False) -> Console:
    """Makes a console for stdout or stderr, without automatic highlighting."""
    result = Console(file=sys.stderr if stderr else stdout(), quiet=quiet, highlight=False)
    if not result.is_terminal:
        result.width = shutil.get_terminal_size((_FILE_WIDTH, 0)).columns
    return result


def track(items: Sequence[_T], name: Callable[[_T], str], title: str = "") -> Iterator[_T]:
    """Yields the items. If stderr is a terminal, a progress bar shows the name of the current one meanwhile."""
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )
    out = console(stderr=True)
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal, redirect_stdout=False) as bar:
        task = bar.add_task("", total=len(items), now="")
        for item in items:
            bar.update(task, now=name(item))
            yield item
            bar.advance(task)


def grid(*rows: tuple[str, str]) -> Table:
    """Makes a table of names and values, without lines and headings."""
    result = Table.grid(padding=(0, 2))
    result.add_column(style="cyan", overflow="fold")
    result.add_column(overflow="fold")
    for row in rows:
        result.add_row(*row)
    return result


def table(headings: Iterable[str], rows: Iterable[Iterable[str]], right: Collection[str] = ()) -> Table:
    """Makes a table whose columns in `right` are right-aligned."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in headings:
        result.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        result.add_row(*row)
    return result


def size(number: int) -> str:
    """Formats a number of bytes, for example "192 KiB"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= factor:
            return f"{number / factor:.4g} {unit}"
    return f"{number} bytes"


def count(number: int, noun: str) -> str:
    """Formats a number with a noun, for example "1 row" or "2 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
