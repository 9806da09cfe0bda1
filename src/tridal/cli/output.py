"""Output of the commands: JSON for scripts, tables and progress bars for users, and errors in one sentence."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TextIO, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console as RichConsole
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tridal.cli.stdout import stdout

__all__ = [
    "FAIL", "PASS", "console", "count", "escape", "grid", "print_json", "size", "table", "track",
]  # fmt: skip

_T = TypeVar("_T")
SECONDS_PER_LINE = 10.0
"""Time between two lines of progress, if stderr is no terminal."""
_BROKEN_PIPE = 141  # exit code of a process that SIGPIPE ends
_FILE_WIDTH = 120  # width of tables in a file or a pipe
_UNLIMITED = 1 << 16
PASS, FAIL = "[green]ok[/]", "[bold red]FAILED[/]"


class Console(RichConsole):
    """A console that pads no lines in a file or a pipe, and raises BrokenPipeError if the reader of a pipe has ended.

    Rich pads the lines of tables with spaces, and would exit without a message.
    """

    breaks_words = True
    """Whether a table that does not fit in the width breaks words. If not, its lines are as long as needed."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints objects as rich does."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        width, unlimited = self.width, self.options.update(width=_UNLIMITED)
        least = (Measurement.get(self, unlimited, each).minimum for each in objects if isinstance(each, Table))
        with self.capture() as captured:
            self.width = width if self.breaks_words or max(least, default=0) <= width else _UNLIMITED
            super().print(*objects, **options)
            self.width = width
        self.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")))
        self.file.flush()

    def on_broken_pipe(self) -> NoReturn:
        """Raises the error that is being handled."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


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
    """Returns a console for stdout or stderr, without automatic highlighting."""
    result = Console(file=sys.stderr if stderr else stdout(), quiet=quiet, highlight=False)
    if not result.is_terminal:
        columns = shutil.get_terminal_size((0, 0)).columns
        result.width, result.breaks_words = columns or _FILE_WIDTH, bool(columns)
    return result


def track(items: Sequence[_T], name: Callable[[_T], str], title: str = "") -> Iterator[_T]:
    """Yields the items, and shows on stderr how many are done and the name of the current one.

    A terminal gets a progress bar, which disappears at the end. Everything else gets a line every `SECONDS_PER_LINE`
    seconds. The loop must not print to stdout, because rich redirects that to stderr meanwhile.
    """
    out = console(stderr=True)
    if out.is_terminal:
        heading = [TextColumn(title)] if title else []
        columns = (*heading, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=out, transient=True) as progress:
            task = progress.add_task("", total=len(items))
            for item in items:
                progress.update(task, description=name(item))
                yield item
                progress.advance(task)
        return
    last_line = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() >= last_line + SECONDS_PER_LINE:
            last_line = time.monotonic()
            parts = (title, f"{done:,} of {len(items):,}", name(item))
            out.print(": ".join(filter(None, parts)), markup=False, soft_wrap=True)
        yield item


def grid(*rows: tuple[str, str]) -> Table:
    """Returns a table of names and values, without lines and headings."""
    result = Table.grid(padding=(0, 2))
    result.add_column(style="cyan", overflow="fold")
    result.add_column(overflow="fold")
    for row in rows:
        result.add_row(*row)
    return result


def table(headings: Iterable[str], rows: Iterable[Iterable[str]], right: Collection[str] = ()) -> Table:
    """Returns a table. The columns named in `right` are right-aligned."""
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
