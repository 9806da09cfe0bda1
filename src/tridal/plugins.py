"""Plugins: entry points of the group `tridal.backends` become backends, or a problem in words. One never harms another.

A plugin is loaded in isolation: whatever it raises, lacks or claims is recorded with it and logged once.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from tridal.errors import words
from tridal.settings import found
from tridal.types import Backend, Option

GROUP = "tridal.backends"
BUNDLED = "tridal"
"""The distribution whose backends come first."""
RESERVED = "auto"

_NAME = re.compile(r"[a-z][a-z0-9]*")
_OPTION_NAME = re.compile(r"[a-z][a-z0-9_]*")
_DATA: Mapping[str, type] = {
    "name": str,
    "device_type": str,
    "dtypes": AbstractSet,
    "interpreted": bool,
    "options": Mapping,
    "install": str,
}
_METHODS = tuple(name for name, member in vars(Backend).items() if inspect.isfunction(member) and name[0] != "_")

_log = logging.getLogger("tridal")


@dataclass(frozen=True, slots=True)
class Registered:
    """A name that was claimed, by whom, and the backend; or the problem with it, in words for people."""

    name: str
    origin: str
    """Distribution and version, say "tridal 0.1.0"."""
    backend: Backend | None
    problem: str | None = None


def _ordered(entries: Iterable[Registered]) -> tuple[Registered, ...]:
    return tuple(sorted(entries, key=lambda entry: (entry.origin.partition(" ")[0] != BUNDLED, entry.name)))


def _discovered() -> Iterator[Registered]:
    owners: dict[str, str] = {}
    for origin, point in sorted(_entry_points(), key=lambda item: (item[0].partition(" ")[0] != BUNDLED, item[0])):
        if point.name in owners:
            entry = Registered(point.name, origin, None, f"shadowed by the backend of that name of {owners[point.name]}")
        else:
            owners[point.name] = origin
            entry = _loaded(point, origin)
        if entry.problem:
            _log.warning("backend %r of %s cannot be used: %s", entry.name, origin, entry.problem)
        yield entry


def _entry_points() -> Iterator[tuple[str, metadata.EntryPoint]]:
    seen: set[str] = set()
    for distribution in metadata.distributions():  # not metadata.entry_points(): one unreadable file would end it all
        try:
            points = distribution.entry_points.select(group=GROUP)
            name = _canonical(distribution.metadata["Name"]) if points else ""
            origin = f"{name} {distribution.version}" if points else ""
        except Exception as error:
            _log.debug("a distribution's entry points cannot be read: %s", _words(error))
            continue
        if name not in seen:  # a distribution that is on the path twice is imported from the first place
            yield from ((origin, point) for point in points)
        seen |= {name} - {""}


def _canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _loaded(point: metadata.EntryPoint, origin: str) -> Registered:
    try:
        backend = point.load()
        problem = _problem(point.name, backend)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = f"it could not be loaded: {_words(error)}"
        _log.debug("loading backend %r of %s", point.name, origin, exc_info=True)
    return Registered(point.name, origin, None if problem else backend, problem)


def _problem(name: str, backend: Any) -> str | None:
    """What a would-be backend lacks, or None."""
    if inspect.isclass(backend):
        return f"expected an instance or a module, found the class {backend.__name__!r}"
    missing = [member for member in (*_DATA, *_METHODS) if not hasattr(backend, member)]
    if missing:
        return f"it lacks {', '.join(missing)}"
    for member, kind in _DATA.items():
        if not isinstance(getattr(backend, member), kind):
            return f"{member}: expected a {kind.__name__}, found {found(getattr(backend, member))}"
    for member in _METHODS:
        if not callable(getattr(backend, member)):
            return f"{member}: expected a method, found {found(getattr(backend, member))}"
    if backend.name != name:
        return f"its entry point is called {name!r} but its name is {backend.name!r}"
    if name == AUTO or not _NAME.fullmatch(name):
        return f"name: expected lower-case letters and digits, and not 'auto', found {name!r}"
    for key, option in backend.options.items():
        if not (isinstance(key, str) and _OPTION_NAME.fullmatch(key)):
            return f"options: expected lower-case letters, digits and underscores as a name, found {key!r}"
        if not isinstance(option, Option):
            return f"options: {key}: expected an Option, found {found(option)}"
        if not _accepted(option, option.default):
            return f"options: {key}: its default {found(option.default)} is not {option.expected}"
    return None


def _accepted(option: Option, value: object) -> bool:
    try:
        return bool(option.accepts(value))
    except Exception:  # say, a comparison of text with a number
        return False


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
