"""Registry of backends: looks them up by name, and chooses one for a device type or a device string.

Backends come from installed plugins or from `register`. Importing this module loads no backend; the first lookup does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Iterator

from tridal.devices import plugins
from tridal.devices.plugins import AUTO, Registered, options, unavailable
from tridal.devices.settings import (
    DEVICE_PATTERN,
    ENVIRONMENT,
    FIELDS,
    VARIABLE_SIMILARITY,
    VARIABLES,
    Settings,
    current,
    variable,
)
from tridal.devices.types import Backend
from tridal.errors import DeviceUnavailableError, PluginError, SettingsError, UnknownDeviceError, nearest

__all__ = [
    "Registered", "available", "check", "check_backends", "check_device", "clear", "get", "invalidate", "on_change",
    "options", "register", "registered", "resolve", "serving", "unavailable", "unregister",
]  # fmt: skip

IN_CODE = "registered in code"
HOST = "cpu"
TORCH_ONLY = (HOST, "meta")
"""Device types that every torch build has. They are valid without a backend."""

_lock = threading.RLock()
_entries: tuple[Registered, ...] | None = None
_discovering = False
_serving_cache: dict[tuple[str, Settings], Backend | None] = {}
_invalidators: list[Callable[[], object]] = [_serving_cache.clear]


def registered() -> tuple[Registered, ...]:
    """Returns all entries, including broken and shadowed plugins: bundled backends first, then sorted by name.

    Raises:
        PluginError: a plugin called the registry while it was being imported.
    """
    global _entries, _discovering
    if _entries is not None:
        return _entries
    with _lock:
        if _discovering:
            raise PluginError("a plugin called the registry while it was being imported; call it after the import")
        if _entries is None:
            _discovering = True
            try:
                _entries = _sorted(plugins.discover())
            finally:
                _discovering = False
        return _entries


def get(name: str) -> Backend:
    """Returns the backend with this name. The backend may be unavailable on this machine.

    Raises:
        UnknownDeviceError: no backend has this name.
        PluginError: the plugin with this name is broken.
    """
    entry = _find(name)
    if entry is None:
        raise _unknown_device(name)
    if entry.backend is None:
        raise PluginError(f"backend {name!r} of {entry.origin} cannot be used: {entry.problem}")
    return entry.backend


def available(name: str) -> Backend:
    """Returns the backend with this name if it is available on this machine.

    Raises:
        DeviceUnavailableError: it is not available. The message says what is missing and how to install it.
        UnknownDeviceError, PluginError: as in `get`.
    """
    backend = get(name)
    reason = unavailable(backend)
    if reason is not None:
        raise DeviceUnavailableError(f"{name!r} is not available here: {reason}. To get it: {backend.install}")
    return backend


def serving(device_type: str, settings: Settings | None = None, known_types: Container[str] = ()) -> Backend | None:
    """Returns the backend that serves tensors of a device type, or None if no backend does. The result is cached.

    It is the backend that the settings name, if that backend has this type. Otherwise it is the first available
    backend of this type in `registered` that is not interpreted.

    Args:
        device_type: a `torch.device.type`.
        settings: the settings to use; the current settings by default.
        known_types: further device types that torch knows and that the settings may name.

    Raises:
        UnknownDeviceError: the settings name a device that neither a backend nor torch knows.
        DeviceUnavailableError, PluginError: as in `available`, for a backend that the settings name.
        SettingsError: as in `check_backends`.
    """
    settings = settings or current()
    try:
        return _serving_cache[device_type, settings]
    except KeyError:
        pass
    check_backends(settings)
    with _lock:
        backend = _choose(device_type, settings, known_types)
        if len(_serving_cache) >= 256:
            _serving_cache.clear()
        _serving_cache[device_type, settings] = backend
        return backend


def resolve(name: str, known_types: Container[str] = ()) -> tuple[Backend | None, str]:
    """Resolves a device name to a backend and a torch device string.

    Args:
        name: "auto", a backend's name, or a device type; the last two may have an index ("npu:1"). "auto" is the
            first available accelerator, or the CPU if there is none.
        known_types: further device types that torch knows.

    Returns:
        The backend (None if no backend serves this device type), and a torch device string such as "npu:1".

    Raises:
        UnknownDeviceError: the name is not one of these.
        DeviceUnavailableError: the backend is not available, or it has no device with this index.
        PluginError: the backend's plugin is broken.
    """
    kind, index = _parse_device(name)
    if kind == AUTO:
        backend = next((b for b in _candidates() if b.device_type != HOST), None) or _first_candidate(HOST)
        kind = HOST if backend is None else backend.device_type
    elif _find(kind) is not None:
        backend = available(kind)
        kind = backend.device_type
    elif _is_device_type(kind, known_types):
        backend = _first_candidate(kind)
    else:
        raise _unknown_device(kind)
    if index is None:
        return backend, kind
    if backend is not None and index >= (count := backend.device_count()):
        present = f"{count} device{'s' * (count != 1)}, counted from 0"
        raise DeviceUnavailableError(f"{name!r} is not here: backend {backend.name!r} has {present}")
    return backend, f"{kind}:{index}"


def register(backend: Backend) -> None:
    """Adds a backend object without a plugin package, for a notebook or a test.

    Raises:
        PluginError: the object does not follow the protocol `Backend`, or its name is already in use.
    """
    global _entries
    name = str(getattr(backend, "name", None))
    with _lock:
        owner = _find(name)
        problem = f"{owner.origin} already uses this name" if owner else plugins.find_problem(backend, name)
        if problem:
            raise PluginError(f"backend {name!r} cannot be registered: {problem}")
        _entries = _sorted([*registered(), Registered(name, IN_CODE, backend)])
        invalidate()


def unregister(name: str) -> None:
    """Removes a backend that `register` added.

    Raises:
        UnknownDeviceError: `register` added no backend with this name.
    """
    global _entries
    with _lock:
        in_code = {entry.name: entry for entry in registered() if entry.origin == IN_CODE}
        if name not in in_code:
            raise UnknownDeviceError(f"no backend {name!r} was registered in code{nearest(name, in_code)}")
        _entries = tuple(entry for entry in registered() if entry is not in_code[name])
        invalidate()


def clear() -> None:
    """Removes all entries, including those that `register` added. The next lookup discovers the plugins again."""
    global _entries
    with _lock:
        _entries = None
        invalidate()


def on_change(callback: Callable[[], object]) -> None:
    """Calls `callback` after every change of the registry. Use it to clear caches that depend on backends."""
    _invalidators.append(callback)


def invalidate() -> None:
    """Clears all caches that depend on backends: calls every callback that `on_change` added."""
    for callback in _invalidators:
        callback()


def check(settings: Settings, known_types: Container[str] = ()) -> None:
    """Checks the parts of the settings that depend on backends. Calls `check_device` and `check_backends`."""
    check_device(settings, known_types)
    check_backends(settings)


def check_backends(settings: Settings) -> None:
    """Checks the options in the settings of every backend. Skips backends whose plugin is broken.

    Raises:
        SettingsError: a section names an unknown backend, or as in `options`.
    """
    for name, section in settings.backends.items():
        entry = _find(name)
        if entry is None:
            key = f"backends.{name}.{next(iter(section))}"
            source, near = settings.sources[key], nearest(name, _names())
            if source.startswith(ENVIRONMENT):  # the user may have misspelt a variable that is no backend option
                near = nearest(source.removeprefix(ENVIRONMENT), _variables(), VARIABLE_SIMILARITY) or near
            known = ", ".join(_names())
            raise SettingsError(f"{source}: {key}: no backend is called {name!r}{near} (known: {known})")
        if entry.backend is not None:
            options(entry.backend, settings)


def check_device(settings: Settings, known_types: Container[str] = ()) -> None:
    """Checks that the setting `device` is "auto", a backend's name or a device type. The device may be absent.

    Raises:
        UnknownDeviceError: it is none of these. The message gives the source of the setting.
    """
    name, _ = _parse_device(settings.device)
    if name != AUTO and _find(name) is None and not _is_device_type(name, known_types):
        raise _unknown_device(name, f"{settings.sources['device']}: device: ")


def _sorted(entries: Iterable[Registered]) -> tuple[Registered, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.sort_key))


def _find(name: str) -> Registered | None:
    return next((entry for entry in registered() if entry.name == name), None)  # shadowed entries come later


def _candidates() -> Iterator[Backend]:
    """Iterates over the backends that can serve without being named: available and not interpreted."""
    return (backend for backend in _backends() if not backend.interpreted and unavailable(backend) is None)


def _first_candidate(device_type: str) -> Backend | None:
    return next((backend for backend in _candidates() if backend.device_type == device_type), None)


def _choose(device_type: str, settings: Settings, known_types: Container[str]) -> Backend | None:
    """Does the uncached work of `serving`."""
    name, _ = _parse_device(settings.device)
    if name != device_type:
        check_device(settings, known_types)
    if _find(name) is not None and get(name).device_type == device_type:
        return available(name)
    return _first_candidate(device_type)


def _parse_device(text: str) -> tuple[str, int | None]:
    """Splits "npu:1" into "npu" and 1. The index is None if there is none."""
    match = DEVICE_PATTERN.fullmatch(text)
    if match is None:
        raise UnknownDeviceError(f"{text!r} is not a device: expected {FIELDS['device'].expected}")
    return match["name"], None if match["index"] is None else int(match["index"])


def _unknown_device(name: str, source: str = "") -> UnknownDeviceError:
    known = sorted({AUTO, *_names(), *TORCH_ONLY})
    return UnknownDeviceError(f"{source}no device is called {name!r}{nearest(name, known)} (known: {', '.join(known)})")


def _names() -> list[str]:
    return sorted({entry.name for entry in registered()})


def _backends() -> list[Backend]:
    return [entry.backend for entry in registered() if entry.backend is not None]


def _is_device_type(name: str, known_types: Container[str]) -> bool:
    return name in TORCH_ONLY or name in known_types or any(backend.device_type == name for backend in _backends())


def _variables() -> list[str]:
    """Returns the names of all environment variables that tridal and its backends read."""
    of_options = (variable(backend.name, option) for backend in _backends() for option in backend.options)
    return [*VARIABLES, *map(variable, FIELDS), *of_options]
