"""Entry points of installed distributions, loaded in isolation: a fault of one does not affect the others."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import metadata
from itertools import chain
from typing import Any

BUNDLED = "tridal"
"""The distribution whose backends and ops take precedence."""
IN_CODE = "registered in code"
"""The origin of a backend that no distribution provides."""

_log = logging.getLogger("tridal")


def is_bundled(origin: str) -> bool:
    """Tells whether an origin, as `entry_points` yields it, is tridal's own distribution."""
    return origin.partition(" ")[0] == BUNDLED


def order(name: str, origin: str) -> tuple[bool, str, str]:
    """Sorts entry points: those of tridal come first, then the order is by name and origin."""
    return not is_bundled(origin), name, origin


def entry_points(group: str) -> list[tuple[str, metadata.EntryPoint]]:
    """Lists (origin, entry point) of every installed distribution, sorted by `order`.

    The origin is the name and version of the distribution.
    """
    found: dict[str, list[tuple[str, metadata.EntryPoint]]] = {}
    for distribution in metadata.distributions():  # metadata.entry_points() raises at the first unreadable file
        with suppress(Exception):  # `unreadable` describes it
            if points := distribution.entry_points.select(group=group):
                name, version = _name_and_version(distribution)
                # Python imports a distribution from the first path entry that has it.
                found.setdefault(name, [(f"{name} {version}", point) for point in points])
    return sorted(chain.from_iterable(found.values()), key=lambda item: order(item[1].name, item[0]))


def unreadable() -> Iterator[str]:
    """Yields a line for each distribution that may have backends or ops, but whose metadata cannot be read."""
    for distribution in metadata.distributions():
        group = text = f"[{BUNDLED}."
        try:
            text = distribution.read_text("entry_points.txt") or ""
            if group in text and distribution.entry_points:
                _name_and_version(distribution)
        except Exception as error:
            if group in text:
                folder = getattr(distribution, "_path", "an unknown folder")
                yield f"the plugins in {folder} cannot be found: {describe_error(error)}"


def _name_and_version(distribution: metadata.Distribution) -> tuple[str, str]:
    name = distribution.metadata["Name"]
    if name is None:
        raise ValueError("the file METADATA is missing or has no name")
    return re.sub(r"[-_.]+", "-", name).lower(), distribution.version


def load(point: metadata.EntryPoint, find_fault: Callable[[Any, str], str | None]) -> tuple[Any, str | None]:
    """Gives (object, None), or (None, fault) if it cannot be loaded or `find_fault(object, name)` finds one."""
    if not point.pattern.match(point.value):
        return None, f"its entry point is {point.value!r}, expected 'module:object'"
    try:
        found = point.load()
        fault = find_fault(found, point.name)
    except KeyboardInterrupt:  # the next use loads it again
        raise
    except BaseException as error:  # includes SystemExit
        _log.debug("loading entry point %r", point.name, exc_info=True)
        return None, f"it could not be loaded: {describe_error(error)}"
    return (None, fault) if fault else (found, None)


def describe_error(error: BaseException) -> str:
    """Writes an exception's type and message in one line, as in "ValueError: bad size". Never raises."""
    message = ""
    with suppress(Exception):  # the exception of a third party
        message = one_line(str(error))
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def one_line(text: str) -> str:
    """Writes a text in one line of at most 500 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 500 else f"{line[:250]} ... {line[-245:]}"
