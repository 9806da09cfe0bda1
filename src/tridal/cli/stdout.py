"""Keeps stdout for the output of a command: what plugins and libraries print meanwhile goes to stderr."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from typing import TextIO

_own: ContextVar[TextIO | None] = ContextVar("tridal_stdout", default=None)


def stdout() -> TextIO:
    """Returns the stream for the output of the command."""
    return _own.get() or sys.stdout


@contextmanager
def reserved() -> Iterator[None]:
    """Redirects `sys.stdout`, and the file descriptor 1 of C libraries and child processes, to stderr in the block.

    Raises OSError if the output of the command cannot be written.
    """
    before = sys.stdout
    if before is None:  # closed
        yield
        return
    own = _duplicate(before)
    token = _own.set(own or before)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _own.reset(token)
        if own is not None:
            _restore(before, own)


def _restore(stream: TextIO, own: TextIO) -> None:
    """Undoes `_duplicate`. Raises OSError if the output cannot be written."""
    try:
        own.flush()
    finally:
        with suppress(OSError):
            stream.flush()  # what was written to sys.__stdout__
        with suppress(OSError, TypeError, AttributeError):  # there is no C library by this name on Windows
            ctypes.CDLL(None).fflush(None)  # what C libraries have in their buffers
        os.dup2(own.fileno(), stream.fileno())
        with suppress(OSError):
            own.close()


def _duplicate(stream: TextIO) -> TextIO | None:
    """Returns another stream to the file of the process's stdout, whose descriptor then writes to stderr.

    Returns None, and changes nothing, if `stream` is another one, such as that of a test or of a notebook.
    """
    try:
        number = stream.fileno()
    except (OSError, AttributeError):
        return None
    if number != 1:
        return None
    stream.flush()
    own = os.fdopen(os.dup(number), "w", encoding=stream.encoding, errors=stream.errors)
    target = os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else sys.stderr.fileno()
    os.dup2(target, number)
    return own
