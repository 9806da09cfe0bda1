"""Plugin loading: finds the entry points of the group `tridal.backends`, loads the backends and checks them.

A broken plugin does not affect other plugins: its error is recorded in its entry and logged once.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, get_origin

from tridal.devices.backend import UPGRADES
from tridal.devices.checked_backend import ATTRIBUTES, CheckedBackend
from tridal.devices.entry_points import describe_error, entry_points, is_bundled, load
from tridal.devices.plugin_data import Rule, instance_of
from tridal.devices.setting_table import checked_value, describe_value
from tridal.devices.settings import Settings
from tridal.devices.types import FEATURES, ITEMSIZE, PROTOCOLS, SCHEDULES, Backend, Option
from tridal.errors import SettingsError, nearest

GROUP = "tridal.backends"
ALL = "all"
"""The value of the setting `plugins` for all backends."""
AUTO = "auto"
"""The device name for "the best available device"."""
HOST = "cpu"
TORCH_ONLY = (HOST, "meta")
"""Device types that every torch build has. They are valid without a backend."""
RESERVED = (ALL, AUTO, *TORCH_ONLY)
"""Names that no backend can have."""


def _instance_of(hint: Any) -> Rule:
    kind = AbstractSet if get_origin(hint) is frozenset else get_origin(hint) or hint
    return Rule(f"a {kind.__name__}", lambda value: isinstance(value, kind))


_RULES = {member: _instance_of(hint) for member, hint in ATTRIBUTES.items()}
_RULES["protocol"] = instance_of(int, "an integer")
"""The rule of each member that is not a method."""
_METHODS: dict[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(member).parameters)[1:]
    for name, member in vars(Backend).items()
    if inspect.isfunction(member) and name[0] != "_"
}
"""The parameters of each method, without `self`."""

_log = logging.getLogger("tridal")


@dataclass(frozen=True, slots=True)
class Registered:
    """An entry of the registry: a name, and either a usable backend or a description of the fault."""

    name: str
    origin: str
    """Distribution and version, for example "tridal 0.1.0"."""
    backend: CheckedBackend | None
    """None if the plugin is broken or shadowed."""
    fault: str | None = None
    """Why the plugin cannot be used; None if it can."""


def discover(settings: Settings | None) -> list[Registered]:
    """Loads the first entry point of each name. Logs a warning for each one that cannot be used.

    Does not import those that the setting `plugins` blocks. Without settings, imports bundled backends only. Raises
    SettingsError as `check_names` does.
    """
    owners: dict[str, str] = {}
    entries = []
    points = entry_points(GROUP)
    if settings is not None:
        check_names(settings, {point.name for _, point in points})
    for origin, point in points:
        if reason := _blocked(point.name, origin, settings):
            entries.append(Registered(point.name, origin, None, reason))
            continue
        if point.name in owners:
            entry = Registered(point.name, origin, None, f"shadowed: {owners[point.name]} already uses this name")
        else:
            owners[point.name] = origin
            plugin, fault = load(point, find_fault)
            backend = None if plugin is None else CheckedBackend(plugin, origin)
            entry = Registered(point.name, origin, backend, fault)
        if entry.fault:
            _log.warning("backend %r of %s cannot be used: %s", entry.name, origin, entry.fault)
        entries.append(entry)
    return entries


def check_names(settings: Settings, installed: Collection[str]) -> None:
    """Raises SettingsError if the setting `plugins` names a backend that is not installed."""
    for rule in map(str.strip, settings.plugins.split(",")):
        name = rule.removeprefix("-")
        if rule != ALL and name not in installed:
            location, known = f"{settings.sources['plugins']}: plugins", ", ".join(sorted(installed))
            raise SettingsError(f"{location}: no backend is called {name!r}{nearest(name, installed)} (known: {known})")


def _blocked(name: str, origin: str, settings: Settings | None) -> str | None:
    """Says why an entry point must not be imported, if the settings block it."""
    if settings is None:
        return None if is_bundled(origin) else "it is not loaded, because the settings cannot be used"
    names = {part.strip() for part in settings.plugins.split(",")}
    blocks = settings.plugins.strip().startswith("-")
    if f"-{name}" not in names if blocks else names & {ALL, name}:
        return None
    return f"it is blocked by {settings.sources['plugins']}: plugins: {settings.plugins}"


def find_fault(plugin: Any, name: str) -> str | None:
    """Checks that an object follows the protocol `Backend` and has the name of its entry point.

    Returns a description of the first fault, or None if there is none.
    """
    try:
        return next(_faults(plugin, name), None)
    except Exception as error:
        return f"reading its members raised {describe_error(error)}"


def _faults(plugin: Any, name: str) -> Iterator[str]:
    """Yields faults. A check assumes that the earlier ones passed, so the caller must stop at the first fault."""
    if inspect.isclass(plugin):
        yield f"expected an instance or a module, found the class {plugin.__name__!r}"
    version, (oldest, newest) = getattr(plugin, "protocol", None), PROTOCOLS
    if type(version) is int and not oldest <= version <= newest:
        supported = f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"
        upgrade = "the plugin" if version < oldest else "tridal"
        upgrade += f" ({UPGRADES[version]})" if version in UPGRADES else ""
        yield f"protocol: it uses version {version} of the protocol, and this tridal {supported}: upgrade {upgrade}"
    if missing := [member for member in (*_RULES, *_METHODS) if not hasattr(plugin, member)]:
        yield f"it lacks {', '.join(missing)}"
    for member, rule in _RULES.items():
        yield from _broken(member, getattr(plugin, member), rule)
    for member, parameters in _METHODS.items():
        method = getattr(plugin, member)
        yield from _broken(member, method, Rule("a method", callable))
        with suppress(ValueError):  # a function that is written in C has no signature
            signature = inspect.signature(method)
            try:
                signature.bind(*parameters)
            except TypeError:
                yield f"{member}: expected the parameters ({', '.join(parameters)}), found {signature}"
    for member, known in (("dtypes", ITEMSIZE), ("schedules", SCHEDULES), ("features", FEATURES)):
        for value in sorted(map(str, getattr(plugin, member))):
            if value not in known:
                yield f"{member}: unknown {value!r}{nearest(value, known)} (known: {', '.join(known)})"
    if not plugin.schedules:
        yield f"schedules: expected at least one of {', '.join(SCHEDULES)}"
    if plugin.name != name:
        yield f"its entry point is called {name!r}, but its name is {plugin.name!r}"
    if name in RESERVED:
        yield f"name: {name!r} is reserved"
    # Names are parts of environment variables, TRIDAL_<BACKEND>_<OPTION>. The first underscore separates the two.
    yield from _broken("name", name, _matching(r"[a-z][a-z0-9]*", "lower-case letters and digits"))
    if name != plugin.device_type and _is_torch_type(name):
        owner = f"a backend with device_type {plugin.device_type!r}"
        yield f"name: {name!r} is a device type of torch, so {owner} cannot have it"
    device_type = _matching(r"(?!meta$)[a-z][a-z0-9_]*", "a torch.device.type without an index, other than 'meta'")
    yield from _broken("device_type", plugin.device_type, device_type)
    for key, option in plugin.options.items():
        option_name = _matching(r"[a-z][a-z0-9_]*", "a name of lower-case letters, digits and underscores")
        yield from _broken("options", key, option_name)
        yield from _broken(f"options: {key}", option, Rule("an Option", lambda value: isinstance(value, Option)))
        try:
            checked_value(option, option.default, f"options: {key}.default")
        except SettingsError as error:
            yield str(error)


def _broken(what: str, value: object, rule: Rule) -> Iterator[str]:
    if not rule.accepts(value):
        yield f"{what}: expected {rule.expected}, found {describe_value(value)}"


def _matching(pattern: str, expected: str) -> Rule:
    return Rule(expected, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


def _is_torch_type(name: str) -> bool:
    """Tells whether a name is a device type of torch. If torch is not imported, no name is."""
    torch = sys.modules.get("torch")
    try:
        return torch is not None and torch.device(name).type == name
    except (RuntimeError, AttributeError):  # AttributeError: torch is partly loaded
        return False
