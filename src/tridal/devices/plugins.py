"""Plugin loading: finds the entry points of the group `tridal.backends`, loads the backends and checks them.

A broken plugin does not affect other plugins: its error is recorded in its entry and logged once. This module also
calls the plugins' functions that may fail later (`unavailable`, `Option.accepts`).
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from tridal.devices.entry_points import describe_error, entry_points, load
from tridal.devices.settings import Settings, describe_value
from tridal.devices.types import FEATURES, RENAMED, SCHEDULES, Backend, Option, new_name
from tridal.errors import SettingsError, nearest

GROUP = "tridal.backends"
BUNDLED = "tridal"
"""The distribution whose backends take precedence."""
AUTO = "auto"
"""The device name for "the best available device". A backend cannot have this name."""

# Names are parts of environment variables, TRIDAL_<BACKEND>_<OPTION>. A backend's name has no underscore, so that the
# first underscore separates the two.
_NAME = re.compile(r"[a-z][a-z0-9]*")
_OPTION_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ATTRIBUTES: Mapping[str, type] = {
    "name": str,
    "device_type": str,
    "dtypes": AbstractSet,
    "schedules": AbstractSet,
    "interpreted": bool,
    "options": Mapping,
    "install": str,
}
_METHODS = tuple(name for name, member in vars(Backend).items() if inspect.isfunction(member) and name[0] != "_")

_log = logging.getLogger("tridal")


@dataclass(frozen=True, slots=True)
class Registered:
    """An entry of the registry: a name, and either a usable backend or a description of the problem."""

    name: str
    origin: str
    """Distribution and version, for example "tridal 0.1.0"."""
    backend: Backend | None
    """None if the plugin is broken or shadowed."""
    problem: str | None = None
    """Why the plugin cannot be used; None if it can."""

    @property
    def sort_key(self) -> tuple[bool, str]:
        """Sorts bundled backends first, then by name."""
        return self.origin.partition(" ")[0] != BUNDLED, self.name


def discover() -> list[Registered]:
    """Loads all entry points and logs a warning for each one that cannot be used.

    If several distributions use one name, the bundled distribution keeps it. If none of them is bundled, the
    distribution that sorts first keeps it.
    """
    owners: dict[str, str] = {}
    entries = []
    for origin, point in sorted(entry_points(GROUP), key=lambda item: (item[0].partition(" ")[0] != BUNDLED, item[0])):
        if point.name in owners:
            entry = Registered(point.name, origin, None, f"shadowed: {owners[point.name]} already uses this name")
        else:
            owners[point.name] = origin
            entry = Registered(point.name, origin, *load(point, find_problem))
        if entry.problem:
            _log.warning("backend %r of %s cannot be used: %s", entry.name, origin, entry.problem)
        entries.append(entry)
    return entries


def find_problem(backend: Any, name: str) -> str | None:
    """Checks that an object follows the protocol `Backend`.

    Args:
        backend: the object that an entry point loaded, or that a user registers.
        name: the name of the entry point, which must be the backend's name.

    Returns:
        A description of the first problem, or None if there is none.
    """
    if inspect.isclass(backend):
        return f"expected an instance or a module, found the class {backend.__name__!r}"
    if backend.__hash__ is None:
        return "it is not hashable: expected a hashable object, because backends are cache keys (dataclass: eq=False)"
    missing = [member for member in (*_ATTRIBUTES, *_METHODS) if not hasattr(backend, member)]
    if missing:
        hints = "".join(new_name(old) for old in RENAMED if RENAMED[old] in missing and hasattr(backend, old))
        return f"it lacks {', '.join(missing)}{hints}"
    for member, kind in _ATTRIBUTES.items():
        if not isinstance(getattr(backend, member), kind):
            return f"{member}: expected a {kind.__name__}, found {describe_value(getattr(backend, member))}"
    for member in _METHODS:
        if not callable(getattr(backend, member)):
            return f"{member}: expected a method, found {describe_value(getattr(backend, member))}"
    for schedule in sorted(map(str, backend.schedules)):
        if schedule not in (*SCHEDULES, *FEATURES):
            hint = new_name(schedule, value=True) or nearest(schedule, (*SCHEDULES, *FEATURES))
            return f"schedules: unknown {schedule!r}{hint} (known: {', '.join((*SCHEDULES, *FEATURES))})"
    if backend.name != name:
        return f"its entry point is called {name!r}, but its name is {backend.name!r}"
    if name == AUTO or not _NAME.fullmatch(name):
        return f"name: expected lower-case letters and digits, and not {AUTO!r}, found {name!r}"
    return next(filter(None, (_find_option_problem(key, option) for key, option in backend.options.items())), None)


def _find_option_problem(key: object, option: object) -> str | None:
    if not isinstance(key, str) or not _OPTION_NAME.fullmatch(key):
        return f"options: expected a name of lower-case letters, digits and underscores, found {key!r}"
    if not isinstance(option, Option):
        return f"options: {key}: expected an Option, found {describe_value(option)}"
    if not accepts(option, option.default):
        return f"options: {key}: expected {option.expected}, found its default {describe_value(option.default)}"
    return None


def unavailable(backend: Backend) -> str | None:
    """Returns why a backend cannot run on this machine, or None if it can. An error in the plugin is also a reason."""
    try:
        reason = backend.unavailable()
    except Exception as error:
        return f"its plugin failed in unavailable(): {describe_error(error)}"
    return None if reason is None else str(reason)


def options(backend: Backend, settings: Settings) -> dict[str, Any]:
    """Returns a value for each option of a backend: the value in the settings, or the option's default.

    Raises:
        SettingsError: the settings have an unknown option or a wrong value. The message gives the source, the key, the
            expected and the found value.
    """
    given = settings.backends.get(backend.name, {})
    for key, value in given.items():
        dotted_key = f"backends.{backend.name}.{key}"
        location = f"{settings.sources[dotted_key]}: {dotted_key}"
        if key not in backend.options:
            known = f"known: {', '.join(sorted(backend.options))}" if backend.options else "it has none"
            near = nearest(key, backend.options)
            raise SettingsError(f"{location}: backend {backend.name!r} has no such option{near} ({known})")
        if not accepts(backend.options[key], value):
            raise SettingsError(f"{location}: expected {backend.options[key].expected}, found {describe_value(value)}")
    return {key: given.get(key, option.default) for key, option in backend.options.items()}


def accepts(option: Option, value: object) -> bool:
    """Returns whether an option accepts a value of any type. An exception in `option.accepts` means no."""
    try:
        return bool(option.accepts(value))
    except Exception:  # for example, a comparison of a string with a number
        return False
