"""Triton's cache folder. If it cannot be written, a temporary folder takes its place in this process."""

from __future__ import annotations

import atexit
import errno
import functools
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tridal.devices.lock import LOCK
from tridal.errors import PlanError

VARIABLE = "TRITON_CACHE_DIR"
_ADVICE = f"set {VARIABLE} to a folder that can be written"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_T = TypeVar("_T")

_log = logging.getLogger("tridal")


def with_cache(compile: Callable[[], _T]) -> _T:
    """Calls a function, again with a temporary folder in `VARIABLE` if Triton's cache cannot be written.

    Kernels that are already in the cache are found there, even if it is read-only.

    Raises:
        PlanError: the temporary folder cannot be written either.
    """
    try:
        return compile()
    except OSError as error:
        unusable = folder()
        if not _is_about(error, unusable):
            raise
        first = error
    with LOCK:
        before = os.environ.get(VARIABLE)
        try:
            os.environ[VARIABLE] = _temporary()
            compiled = compile()
        except OSError as error:
            os.environ.pop(VARIABLE)
            os.environ.update({} if before is None else {VARIABLE: before})
            again = f"nor can the folder for temporary files ({_reason(error)})"
            raise PlanError(f"{_describe(unusable, first)}, {again}: {_ADVICE}") from error
    _log.warning(
        "%s: the kernels of this process are in a temporary folder, and the next process compiles them again; %s",
        _describe(unusable, first),
        _ADVICE,
    )
    return compiled


def folder() -> str:
    """Triton's cache folder, also if it is the default one."""
    try:
        from triton import knobs  # since Triton 3.4

        return str(knobs.cache.dir)
    except ImportError:
        home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
        return os.environ.get(VARIABLE) or os.path.join(home, ".triton", "cache")


def _describe(unusable: str, error: OSError) -> str:
    """Returns that a cache folder cannot be written, and why."""
    return f"Triton's cache folder {unusable!r} cannot be written ({_reason(error)})"


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _is_about(error: OSError, unusable: str) -> bool:
    """Tells whether an error is about the folder, a file in it or a folder above it."""
    if error.errno in _FULL or not isinstance(error.filename, str):
        return error.errno in _FULL
    paths = Path(error.filename), Path(unusable)
    return paths[0].is_relative_to(paths[1]) or paths[1].is_relative_to(paths[0])


@functools.cache
def _temporary() -> str:
    """Makes a folder that is removed when this process ends, but not when a forked child ends."""
    made = tempfile.mkdtemp(prefix="tridal-triton-cache-")
    atexit.register(_remove, made, os.getpid())
    return made


def _remove(made: str, process: int) -> None:
    if process == os.getpid():
        shutil.rmtree(made, ignore_errors=True)
