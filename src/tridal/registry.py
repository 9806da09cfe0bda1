"""Backends by name: those that entry points offer and those made in code; which one serves what, and with which options.

Nothing is discovered or loaded on import. Every plugin is loaded in isolation: one that is broken is recorded with its
problem, logged once, and harms nobody.
"""

from __future__ import annotations

import inspect
import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from tridal.errors import DeviceUnavailableError, PluginError, SettingsError, UnknownDeviceError, nearest
from tridal.settings import DEVICE_FORM, FIELDS, VARIABLES, Settings, current, found, variable
from tridal.types import Backend, Option

GROUP = "tridal.backends"
BUNDLED = "tridal"
"""The distribution whose backends come first."""
IN_CODE = "registered in code"
AUTO = "auto"
HOST = "cpu"
TORCH_ONLY = ("cpu", "meta")
"""Device types that every torch has and that need no backend."""

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


_lock = threading.RLock()
_entries: tuple[Registered, ...] | None = None
_discovering = False
_served: dict[tuple[str, str], Backend | None] = {}
_checked: Settings | None = None


def registered() -> tuple[Registered, ...]:
    """Everything that was claimed: the bundled backends first, then by name; broken and shadowed ones included."""
    global _entries, _discovering
    if _entries is not None:
        return _entries
    with _lock:
        if _discovering:
            raise PluginError("a plugin asked for backends while it was being imported; it can do so only later")
        if _entries is None:
            _discovering = True
            try:
                _entries = _ordered(_discovered())
            finally:
                _discovering = False
        return _entries


def get(name: str) -> Backend:
    """The backend of that name, available or not.

    Raises:
        UnknownDeviceError: nobody has registered the name.
        PluginError: its plugin cannot be used.
    """
    entry = _entry(name)
    if entry is None:
        raise _unknown(name)
    if entry.backend is None:
        raise PluginError(f"backend {name!r} of {entry.origin} cannot be used: {entry.problem}")
    return entry.backend


def unavailable(backend: Backend) -> str | None:
    """Why a backend can't run here, or None; that its plugin fails at telling so is a reason, too."""
    try:
        reason = backend.unavailable()
    except Exception as error:
        return f"its plugin failed to tell: {_words(error)}"
    return None if reason is None else str(reason)


def available(name: str) -> Backend:
    """The backend of that name, which can run here.

    Raises:
        DeviceUnavailableError: saying what is missing and how to get it; and as `get`.
    """
    backend = get(name)
    reason = unavailable(backend)
    if reason is not None:
        raise DeviceUnavailableError(f"{name!r} is not available here: {reason}. To get it: {backend.install}")
    return backend


def serving(device_type: str, settings: Settings | None = None, known_types: Iterable[str] = ()) -> Backend | None:
    """Who serves tensors of that `torch.device.type`: the backend that the settings name, if that is its type; else
    the first that is available and not interpreted; else nobody. Cheap when asked again.

    Raises:
        UnknownDeviceError: the settings name a device that no backend has, nor torch as far as `known_types` tells.
        DeviceUnavailableError, PluginError: as `available`, for the backend that the settings name.
        SettingsError: as `check_backends`.
    """
    settings = settings or current()
    if settings is _checked:
        try:
            return _served[device_type, settings.device]
        except KeyError:
            pass
    _check(settings)
    with _lock:
        backend = _served[device_type, settings.device] = _chosen(device_type, settings, known_types)
        return backend


def resolve(name: str, known_types: Iterable[str] = ()) -> tuple[Backend | None, str]:
    """The backend and the torch device string that a device in the settings' form stands for.

    "auto" is the best accelerator present, else the CPU. A backend's name is that backend, which has to be available.
    A device type of torch's own (`known_types`, besides "cpu" and "meta") is itself, with whoever serves it or None.

    Raises:
        UnknownDeviceError: a name that is none of these.
        DeviceUnavailableError: a backend that can't run here, or an index beyond the devices present.
        PluginError: a backend whose plugin can't be used.
    """
    kind, index = _split(name)
    if kind == AUTO:
        backend = next((b for b in _candidates() if b.device_type != HOST), None) or _first(HOST)
        kind = HOST if backend is None else backend.device_type
    elif _entry(kind):
        backend = available(kind)
        kind = backend.device_type
    elif kind in _types(known_types):
        backend = _first(kind)
    else:
        raise _unknown(kind, known_types)
    if index is None:
        return backend, kind
    if backend is not None and index >= (count := backend.device_count()):
        present = f"{count} device{'s' * (count != 1)}, counted from 0"
        raise DeviceUnavailableError(f"{name!r} is not here: backend {backend.name!r} has {present}")
    return backend, f"{kind}:{index}"


def register(backend: Backend) -> None:
    """Adds a backend made in code, for a notebook or a test.

    Raises:
        PluginError: it lacks something, or its name is taken.
    """
    global _entries
    name = getattr(backend, "name", None)
    problem = _problem(name if isinstance(name, str) else "", backend)
    if problem:
        raise PluginError(f"backend {name!r} cannot be registered: {problem}")
    with _lock:
        taken = _entry(backend.name)
        if taken:
            raise PluginError(f"backend {name!r} cannot be registered: {taken.origin} has that name")
        _entries = _ordered([*registered(), Registered(backend.name, IN_CODE, backend)])
        _forget_choices()


def unregister(name: str) -> None:
    """Removes a backend that was made in code.

    Raises:
        UnknownDeviceError: no such backend was registered in code.
    """
    global _entries
    with _lock:
        entry = _entry(name)
        if entry is None or entry.origin != IN_CODE:
            made = [e.name for e in registered() if e.origin == IN_CODE]
            raise UnknownDeviceError(f"no backend {name!r} was registered in code{nearest(name, made)}")
        _entries = tuple(e for e in registered() if e is not entry)
        _forget_choices()


def clear() -> None:
    """Forgets everything, backends made in code included; entry points are discovered again on next need."""
    global _entries
    with _lock:
        _entries = None
        _forget_choices()


def options(backend: Backend, settings: Settings) -> dict[str, Any]:
    """A value for each of the backend's options: as the settings have it, else its default.

    Raises:
        SettingsError: naming source, key, what was expected and what was found.
    """
    given = settings.backends.get(backend.name, {})
    for key, value in given.items():
        where = f"{settings.sources[f'backends.{backend.name}.{key}']}: backends.{backend.name}.{key}"
        option = backend.options.get(key)
        if option is None:
            near = nearest(key, backend.options)
            known = f"known: {', '.join(sorted(backend.options))}" if backend.options else "it has none"
            raise SettingsError(f"{where}: backend {backend.name!r} has no such option{near} ({known})")
        if not _accepted(option, value):
            raise SettingsError(f"{where}: expected {option.expected}, found {found(value)}")
    return {key: given.get(key, option.default) for key, option in backend.options.items()}


def check_backends(settings: Settings) -> None:
    """Checks every backend's section of the settings; one whose plugin is broken can't be, and is left alone.

    Raises:
        SettingsError: as `options`, and for a section of a backend that nobody registered.
    """
    for name, section in settings.backends.items():
        entry = _entry(name)
        if entry is None:
            key = f"backends.{name}.{next(iter(section))}"
            source = settings.sources[key]
            near = nearest(name, _names())
            if source.startswith("environment "):  # perhaps it was not meant to be a backend's option at all
                near = nearest(source.removeprefix("environment "), _variables()) or near
            raise SettingsError(
                f"{source}: {key}: no backend is called {name!r}{near} (known: {', '.join(_names())})"
            )
        if entry.backend is not None:
            options(entry.backend, settings)


def _check(settings: Settings) -> None:
    global _checked
    if settings is not _checked:
        check_backends(settings)
        _checked = settings


def _forget_choices() -> None:
    global _checked
    _served.clear()
    _checked = None


def _chosen(device_type: str, settings: Settings, known_types: Iterable[str]) -> Backend | None:
    name, _ = _split(settings.device)
    if name == AUTO:
        return _first(device_type)
    if _entry(name) is not None:
        return available(name) if get(name).device_type == device_type else _first(device_type)
    if name != device_type and name not in _types(known_types):
        raise _unknown(name, known_types, settings.sources["device"])
    return _first(device_type)


def _first(device_type: str) -> Backend | None:
    return next((backend for backend in _candidates() if backend.device_type == device_type), None)


def _candidates() -> Iterator[Backend]:
    """Backends that serve without being asked for by name."""
    for entry in registered():
        if entry.backend is not None and not entry.backend.interpreted and unavailable(entry.backend) is None:
            yield entry.backend


def _entry(name: str) -> Registered | None:
    entries = [entry for entry in registered() if entry.name == name]
    return entries[-1] if entries else None


def _names() -> list[str]:
    return sorted({entry.name for entry in registered()})


def _types(known_types: Iterable[str]) -> set[str]:
    return {*TORCH_ONLY, *known_types, *(e.backend.device_type for e in registered() if e.backend is not None)}


def _variables() -> list[str]:
    backends = [entry.backend for entry in registered() if entry.backend is not None]
    return [*VARIABLES, *map(variable, FIELDS), *(variable(b.name, option) for b in backends for option in b.options)]


def _split(name: str) -> tuple[str, int | None]:
    form = DEVICE_FORM.fullmatch(name)
    if form is None:
        raise UnknownDeviceError(f"{name!r} is not a device: expected {FIELDS['device'].expected}")
    return form["name"], None if form["index"] is None else int(form["index"])


def _unknown(name: str, known_types: Iterable[str] = (), source: str | None = None) -> UnknownDeviceError:
    known = sorted({AUTO, *_names(), *TORCH_ONLY, *known_types})
    where = f"{source}: device: " if source else ""
    return UnknownDeviceError(f"{where}no device is called {name!r}{nearest(name, known)} (known: {', '.join(known)})")


