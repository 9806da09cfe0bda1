"""Plugins: entry points of the group `tridal.backends` become backends, or a problem in words. None harms another.

A plugin is loaded in isolation: whatever it raises, lacks or wrongly claims is recorded with it and logged once. What
one answers later, and the options that it is given, are guarded here as well.
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

from tridal.devices.settings import Settings, found
from tridal.devices.types import Backend, Option
from tridal.errors import SettingsError, nearest

GROUP = "tridal.backends"
BUNDLED = "tridal"
"""The distribution whose backends come first."""
AUTO = "auto"
"""What settings call the best device present, and no backend can be called."""

# Names become parts of the variables TRIDAL_<BACKEND>_<OPTION>: a backend's ends at the first underscore.
_NAME = re.compile(r"[a-z][a-z0-9]*")
_OPTION_NAME = re.compile(r"[a-z][a-z0-9_]*")
_DATA: Mapping[str, type] = {
    "name": str,
    "device_type": str,
    "dtypes": AbstractSet,
    "algorithms": AbstractSet,
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

    @property
    def order(self) -> tuple[bool, str]:
        """Sorts the bundled backends first, then by name."""
        return self.origin.partition(" ")[0] != BUNDLED, self.name


def discover() -> list[Registered]:
    """Loads all entry points. Of two with one name, the bundled distribution's holds, else the first distribution's."""
    holders: dict[str, str] = {}
    entries = []
    for origin, point in sorted(_entry_points(), key=lambda item: (item[0].partition(" ")[0] != BUNDLED, item[0])):
        if point.name in holders:
            entry = Registered(point.name, origin, None, f"shadowed: {holders[point.name]} has a backend of that name")
        else:
            holders[point.name] = origin
            entry = _load(point, origin)
        if entry.problem:
            _log.warning("backend %r of %s cannot be used: %s", entry.name, origin, entry.problem)
        entries.append(entry)
    return entries


def _entry_points() -> Iterator[tuple[str, metadata.EntryPoint]]:
    seen: set[str] = set()
    for distribution in metadata.distributions():  # metadata.entry_points() would end at the first unreadable file
        try:
            points = distribution.entry_points.select(group=GROUP)
            if not points:
                continue
            name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
            origin = f"{name} {distribution.version}"
        except Exception as error:
            _log.debug("the entry points of a distribution cannot be read: %s", words(error))
            continue
        if name not in seen:  # one that is on the path twice is imported from the first place
            seen.add(name)
            yield from ((origin, point) for point in points)


def _load(point: metadata.EntryPoint, origin: str) -> Registered:
    try:
        backend = point.load()
        problem = problem_with(backend, point.name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too
        _log.debug("loading backend %r of %s", point.name, origin, exc_info=True)
        problem = f"it could not be loaded: {words(error)}"
    return Registered(point.name, origin, None if problem else backend, problem)


def problem_with(backend: Any, name: str) -> str | None:
    """What a would-be backend lacks or has wrong, or None. `name` is what its entry point is called."""
    if inspect.isclass(backend):
        return f"expected an instance or a module, found the class {backend.__name__!r}"
    if backend.__hash__ is None:
        return "it cannot be a cache's key: expected it to be hashable, as a dataclass with eq=False is"
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
        return f"its entry point is called {name!r}, but its name is {backend.name!r}"
    if name == AUTO or not _NAME.fullmatch(name):
        return f"name: expected lower-case letters and digits, and not {AUTO!r}, found {name!r}"
    return next(filter(None, (_problem_with_option(key, option) for key, option in backend.options.items())), None)


def _problem_with_option(key: object, option: object) -> str | None:
    if not isinstance(key, str) or not _OPTION_NAME.fullmatch(key):
        return f"options: expected a name of lower-case letters, digits and underscores, found {key!r}"
    if not isinstance(option, Option):
        return f"options: {key}: expected an Option, found {found(option)}"
    if not accepts(option, option.default):
        return f"options: {key}: expected {option.expected}, found its default {found(option.default)}"
    return None


def unavailable(backend: Backend) -> str | None:
    """Why a backend can't run here, or None. That its plugin fails at telling so is a reason, too."""
    try:
        reason = backend.unavailable()
    except Exception as error:
        return f"its plugin failed to tell: {words(error)}"
    return None if reason is None else str(reason)


def options(backend: Backend, settings: Settings) -> dict[str, Any]:
    """A value for each of the backend's options: what the settings have, else its default.

    Raises:
        SettingsError: naming source, key, what was expected and what was found.
    """
    given = settings.backends.get(backend.name, {})
    for key, value in given.items():
        dotted = f"backends.{backend.name}.{key}"
        where = f"{settings.sources[dotted]}: {dotted}"
        if key not in backend.options:
            known = f"known: {', '.join(sorted(backend.options))}" if backend.options else "it has none"
            near = nearest(key, backend.options)
            raise SettingsError(f"{where}: backend {backend.name!r} has no such option{near} ({known})")
        if not accepts(backend.options[key], value):
            raise SettingsError(f"{where}: expected {backend.options[key].expected}, found {found(value)}")
    return {key: given.get(key, option.default) for key, option in backend.options.items()}


def accepts(option: Option, value: object) -> bool:
    """Whether a value will do for an option, whatever its type."""
    try:
        return bool(option.accepts(value))
    except Exception:  # say, a comparison of text with a number
        return False


def words(error: BaseException) -> str:
    """An exception on one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
