"""Registry of backends: looks them up by name, and chooses one for a device type or a device string.

Backends come from installed plugins or from `register`. Importing this module loads no backend; the first lookup does.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from typing import Any

from tridal.devices import plugins
from tridal.devices.checked_backend import CheckedBackend, checked, forget_answers
from tridal.devices.entry_points import IN_CODE as IN_CODE
from tridal.devices.entry_points import order
from tridal.devices.lock import LOCK
from tridal.devices.plugins import AUTO, RESERVED, TORCH_ONLY
from tridal.devices.plugins import HOST as HOST
from tridal.devices.plugins import Registered as Registered
from tridal.devices.setting_layers import checked_value, nearest_variable, parse_device, variable
from tridal.devices.settings import Settings, current
from tridal.devices.types import Backend, find_architecture
from tridal.errors import DeviceUnavailableError, PluginError, SettingsError, UnknownDeviceError, did_you_mean, nearest

_ANY_ACCELERATOR = ("gpu", "gpus", "accelerator")
"""Words that stand for an accelerator of any kind. The error for them suggests all accelerators."""

_entries: tuple[Registered, ...] | None = None
_discovering = False
_serving_cache: dict[tuple[str, Settings], CheckedBackend | None] = {}
_invalidators: list[Callable[[], object]] = [_serving_cache.clear, forget_answers]


def registered() -> tuple[Registered, ...]:
    """Returns all entries, including broken and shadowed plugins: bundled backends first, then sorted by name."""
    global _entries, _discovering
    if _entries is not None:
        return _entries
    with LOCK:
        if _discovering:
            raise PluginError("a plugin called the registry while it was being imported; call it after the import")
        if _entries is None:
            _discovering = True
            try:
                _entries = tuple(plugins.discover(current()))
            except SettingsError:  # the entries are not kept, because the next call may find the settings corrected
                return tuple(plugins.discover(None))
            finally:
                _discovering = False
        return _entries


def loaded() -> list[CheckedBackend]:
    """Returns all backends that loaded without a fault. They may be unavailable on this machine."""
    return [entry.backend for entry in registered() if entry.backend is not None]


def get(name: str) -> CheckedBackend:
    """Returns the backend with this name, available or not. Raises UnknownDeviceError or PluginError."""
    entry = _find(name)
    if entry is None:
        raise _unknown_device(name)
    if entry.backend is None:
        raise PluginError(f"backend {name!r} of {entry.origin} cannot be used: {entry.fault}")
    return entry.backend


def available(name: str, source: str = "") -> CheckedBackend:
    """Returns the backend with this name. Raises DeviceUnavailableError if it is unavailable, and what `get` raises.

    The message of the error starts with `source`. It names the other backends of the same device type.
    """
    backend = get(name)
    if (reason := backend.unavailable()) is not None:
        kind, others = backend.device_type, [b for b in loaded() if b.name != name and not b.interpreted]
        same_type = [
            f"{other.name!r}, which also serves {kind!r} tensors, is {'not ' * bool(other.unavailable())}available. "
            for other in others
            if other.device_type == kind
        ]
        raise DeviceUnavailableError(
            f"{source}{name!r} is not available here: {reason}. To get it: {backend.install}. {''.join(same_type)}"
            f"To use the first available device: {AUTO!r}"
        )
    return backend


def options(backend: Backend, settings: Settings) -> dict[str, Any]:
    """Returns the value of each option of a backend: the value in the settings, or the option's default.

    Raises SettingsError if the settings have an unknown option or a wrong value.
    """
    given = settings.backends.get(backend.name, {})
    values = {key: option.default for key, option in backend.options.items()}
    for key, value in given.items():
        dotted_key = f"backends.{backend.name}.{key}"
        location = f"{settings.sources[dotted_key]}: {dotted_key}"
        if key not in backend.options:
            known = f"known: {', '.join(sorted(backend.options))}" if backend.options else "it has none"
            near = nearest(key, backend.options)
            raise SettingsError(f"{location}: backend {backend.name!r} has no such option{near} ({known})")
        values[key] = checked_value(backend.options[key], value, location)
    return values


def serving(
    device_type: str, settings: Settings | None = None, known_types: Container[str] = ()
) -> CheckedBackend | None:
    """Returns the backend that serves tensors of a `torch.device.type`, or None if no backend does.

    It is the backend that the settings name (by default the current ones), if that backend has this type. Otherwise it
    is the first available backend of this type in `registered` that is not interpreted. torch computes CPU tensors
    unless the settings name a backend. The result is cached.

    Raises:
        UnknownDeviceError: the settings name a device that is neither known to a backend nor in `known_types`.
        DeviceUnavailableError, PluginError: as in `available`, for a backend that the settings name.
        SettingsError: as in `check_backends`.
    """
    key = device_type, settings or current()
    with suppress(KeyError):
        return _serving_cache[key]  # without the lock, which a thread holds while it compiles or interprets
    with LOCK:
        if key not in _serving_cache:
            if len(_serving_cache) >= 256:
                _serving_cache.clear()
            _serving_cache[key] = _choose(*key, known_types)
        return _serving_cache[key]


def _choose(device_type: str, settings: Settings, known_types: Container[str]) -> CheckedBackend | None:
    """Implements `serving` without its cache."""
    check_backends(settings)
    name, _ = parse_device(settings.device)
    if name != device_type:
        check_device(settings, known_types)
    is_named = _find(name) is not None and get(name).device_type == device_type
    return available(name, _location(settings)) if is_named else _first_candidate(device_type)


def resolve_chosen(settings: Settings, known_types: Container[str] = ()) -> tuple[CheckedBackend | None, str]:
    """Resolves the device in the settings, as `resolve` does. The errors give the source of the setting."""
    check(settings, known_types)
    return resolve(settings.device, known_types, _location(settings))


def resolve(name: str, known_types: Container[str] = (), source: str = "") -> tuple[CheckedBackend | None, str]:
    """Resolves a device name to a backend and a torch device string such as "npu:1".

    The name is "auto", a backend's name or a device type; the last two may have an index. "auto" is the first available
    accelerator, or the CPU if there is none. The backend is None if no backend serves the device type.

    Raises (the messages start with `source`):
        UnknownDeviceError: the name is not one of these, and not in `known_types`, the types that torch knows.
        DeviceUnavailableError: the backend is not available, or there is no device with this index.
        PluginError: the backend's plugin is broken.
    """
    kind, index = parse_device(name)
    if kind == AUTO:
        backend = next(_candidates(), None)
        kind = HOST if backend is None else backend.device_type
    elif _find(kind) is not None:
        backend = available(kind, source)
        kind = backend.device_type
    elif _is_device_type(kind, known_types):
        backend = _first_candidate(kind)
    else:
        raise _unknown_device(kind, source)
    if index is None:
        return backend, kind
    if backend is not None:
        owner, count = f"backend {backend.name!r}", backend.device_count()
    else:
        owner, count = repr(kind), 1 if kind in TORCH_ONLY else index + 1  # torch counts the devices of other types
    if index >= count:
        present = f"{count} device{'s' * (count != 1)}, counted from 0"
        raise DeviceUnavailableError(f"{source}{name!r} is not here: {owner} has {present}")
    return backend, f"{kind}:{index}"


def register(backend: Backend) -> None:
    """Adds a backend object without a plugin package, for a notebook or a test.

    Raises PluginError if it does not follow the protocol `Backend`, or if its name is already in use.
    """
    name = str(getattr(backend, "name", None))
    with LOCK:
        owner = _find(name)
        fault = f"{owner.origin} already uses this name" if owner else plugins.find_fault(backend, name, IN_CODE)
        if fault:
            raise PluginError(f"backend {name!r} cannot be registered: {fault}")
        entries = [*registered(), Registered(name, IN_CODE, checked(backend, IN_CODE))]
        _replace_entries(sorted(entries, key=lambda entry: order(entry.name, entry.origin)))


def unregister(name: str) -> None:
    """Removes a backend that `register` added. Raises UnknownDeviceError if there is none with this name."""
    with LOCK:
        in_code = {entry.name: entry for entry in registered() if entry.origin == IN_CODE}
        if name not in in_code:
            raise UnknownDeviceError(f"no backend {name!r} was registered in code{nearest(name, in_code)}")
        _replace_entries(entry for entry in registered() if entry is not in_code[name])
        checked.cache_clear()  # it would keep the backend alive


def clear() -> None:
    """Removes all entries, including those that `register` added. The next lookup discovers the plugins again."""
    _replace_entries(None)


def _replace_entries(entries: Iterable[Registered] | None) -> None:
    global _entries
    with LOCK:
        _entries = None if entries is None else tuple(entries)
        invalidate()


def on_change(callback: Callable[[], object]) -> None:
    """Calls `callback` after every change of the registry. Use it to clear caches that depend on backends."""
    _invalidators.append(callback)


def invalidate() -> None:
    """Clears all caches that depend on backends: calls every callback that `on_change` added."""
    for callback in _invalidators:
        callback()


def check(settings: Settings, known_types: Container[str] = ()) -> None:
    """Checks the parts of the settings that depend on backends, with `check_device` and `check_backends`."""
    check_device(settings, known_types)
    check_backends(settings)


def check_device(settings: Settings, known_types: Container[str] = ()) -> None:
    """Raises UnknownDeviceError if the setting `device` is not "auto", a backend's name or a device type."""
    name, _ = parse_device(settings.device)
    if name != AUTO and _find(name) is None and not _is_device_type(name, known_types):
        raise _unknown_device(name, _location(settings))


def check_backends(settings: Settings) -> None:
    """Raises SettingsError for an unknown backend or a wrong option. Skips backends whose plugin is broken."""
    plugins.check_names(settings, _names())
    for name, section in settings.backends.items():
        entry = _find(name)
        if entry is None:
            key = f"backends.{name}.{next(iter(section))}"
            source = settings.sources[key]
            variables = [variable(backend.name, option) for backend in loaded() for option in backend.options]
            near = nearest_variable(source, variables) or nearest(name, _names())
            raise SettingsError(f"{source}: {key}: no backend is called {name!r}{near} (known: {', '.join(_names())})")
        if entry.backend is not None:
            options(entry.backend, settings)


def _find(name: str) -> Registered | None:
    """Returns the entry with a name, which may be broken. The first one is not shadowed."""
    return None if name in RESERVED else next((entry for entry in registered() if entry.name == name), None)


def _names() -> list[str]:
    return sorted({entry.name for entry in registered()})


def _candidates() -> Iterator[CheckedBackend]:
    """Iterates over the backends that may be chosen automatically: available accelerators that are not interpreted."""
    compiled = (backend for backend in loaded() if not backend.interpreted and backend.device_type != HOST)
    return (backend for backend in compiled if backend.unavailable() is None)


def _first_candidate(device_type: str) -> CheckedBackend | None:
    return next((backend for backend in _candidates() if backend.device_type == device_type), None)


def _is_device_type(name: str, known_types: Container[str]) -> bool:
    return name in TORCH_ONLY or name in known_types or any(backend.device_type == name for backend in loaded())


def _location(settings: Settings) -> str:
    """Returns where the device is set, as the start of an error message."""
    return f"{settings.sources['device']}: device: "


def device_names() -> list[str]:
    """Returns the names of devices: "auto", all backends, and the device types that every torch build has."""
    return sorted({AUTO, *_names(), *TORCH_ONLY})


def _unknown_device(name: str, source: str = "") -> UnknownDeviceError:
    known = device_names()
    accelerators = [b.name for b in loaded() if b.device_type != HOST and not b.interpreted]
    near = did_you_mean(accelerators) if name.lower() in _ANY_ACCELERATOR else nearest(name, known)
    for backend in loaded() if name.lower() not in known else ():
        with suppress(Exception):  # a third party's backend can raise anything
            if find_architecture(name, backend.architectures()) is not None:
                near = f"; it is an architecture of the device {backend.name!r}"
                break
    return UnknownDeviceError(f"{source}no device is called {name!r}{near} (known: {', '.join(known)})")
