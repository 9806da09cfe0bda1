"""Backends by name: those that plugins offer and those made in code; who serves what, and with which options.

Nothing is discovered or loaded on import, but on first need.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Iterator

from tridal.devices import plugins
from tridal.devices.plugins import AUTO, Registered, options, unavailable
from tridal.devices.settings import (
    DEVICE_FORM,
    ENVIRONMENT,
    FIELDS,
    NEAR_VARIABLE,
    VARIABLES,
    Settings,
    current,
    variable,
)
from tridal.devices.types import Backend
from tridal.errors import DeviceUnavailableError, PluginError, SettingsError, UnknownDeviceError, nearest

__all__ = [
    "Registered", "available", "check", "check_backends", "check_device", "clear", "get", "options", "register",
    "registered", "resolve", "serving", "unavailable", "unregister", "when_changed",
]  # fmt: skip

IN_CODE = "registered in code"
HOST = "cpu"
TORCH_ONLY = (HOST, "meta")
"""Device types that every torch has, whether or not a backend serves them."""

_lock = threading.RLock()
_entries: tuple[Registered, ...] | None = None
_discovering = False
_served: dict[tuple[str, Settings], Backend | None] = {}
_forgetters: list[Callable[[], object]] = [_served.clear]


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
                _entries = _ordered(plugins.discover())
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


def available(name: str) -> Backend:
    """The backend of that name, which can run here.

    Raises:
        DeviceUnavailableError: it can't; says what is missing and how to get it.
        UnknownDeviceError, PluginError: as `get`.
    """
    backend = get(name)
    reason = unavailable(backend)
    if reason is not None:
        raise DeviceUnavailableError(f"{name!r} is not available here: {reason}. To get it: {backend.install}")
    return backend


def serving(device_type: str, settings: Settings | None = None, known_types: Container[str] = ()) -> Backend | None:
    """Who serves tensors of that `torch.device.type`; nobody is None. Cheap when asked again.

    It is the backend that the settings name, if that is its type, else the first that is available and not interpreted.

    Raises:
        UnknownDeviceError: the settings name a device that neither a backend nor torch (`known_types`) has.
        DeviceUnavailableError, PluginError: as `available`, for a backend that the settings name.
        SettingsError: as `check_backends`.
    """
    settings = settings or current()
    try:
        return _served[device_type, settings]
    except KeyError:
        pass
    check_backends(settings)
    with _lock:
        backend = _chosen(device_type, settings, known_types)
        if len(_served) >= 256:
            _served.clear()
        _served[device_type, settings] = backend
        return backend


def resolve(name: str, known_types: Container[str] = ()) -> tuple[Backend | None, str]:
    """The backend and the torch device string that a device in the settings' form stands for.

    "auto" is the first accelerator that is available, else the CPU. A backend's name is that backend, which has to be
    available. A device type is itself, with whoever serves it or None: "cpu", "meta", a backend's, or in `known_types`.

    Raises:
        UnknownDeviceError: a name that is none of these.
        DeviceUnavailableError: a backend that can't run here, or an index beyond the devices present.
        PluginError: a backend whose plugin cannot be used.
    """
    kind, index = _split(name)
    if kind == AUTO:
        backend = next((b for b in _candidates() if b.device_type != HOST), None) or _first(HOST)
        kind = HOST if backend is None else backend.device_type
    elif _entry(kind) is not None:
        backend = available(kind)
        kind = backend.device_type
    elif _is_type(kind, known_types):
        backend = _first(kind)
    else:
        raise _unknown(kind)
    if index is None:
        return backend, kind
    if backend is not None and index >= (count := backend.device_count()):
        present = f"{count} device{'s' * (count != 1)}, counted from 0"
        raise DeviceUnavailableError(f"{name!r} is not here: backend {backend.name!r} has {present}")
    return backend, f"{kind}:{index}"


def register(backend: Backend) -> None:
    """Adds a backend made in code, for a notebook or a test.

    Raises:
        PluginError: it lacks something or has it wrong, or its name is taken.
    """
    global _entries
    name = str(getattr(backend, "name", None))
    with _lock:
        taken = _entry(name)
        problem = f"{taken.origin} has that name" if taken else plugins.problem_with(backend, name)
        if problem:
            raise PluginError(f"backend {name!r} cannot be registered: {problem}")
        _entries = _ordered([*registered(), Registered(name, IN_CODE, backend)])
        _forget()


def unregister(name: str) -> None:
    """Removes a backend that was made in code.

    Raises:
        UnknownDeviceError: no such backend was registered in code.
    """
    global _entries
    with _lock:
        made = {entry.name: entry for entry in registered() if entry.origin == IN_CODE}
        if name not in made:
            raise UnknownDeviceError(f"no backend {name!r} was registered in code{nearest(name, made)}")
        _entries = tuple(entry for entry in registered() if entry is not made[name])
        _forget()


def clear() -> None:
    """Forgets everything, backends made in code included; plugins are discovered again on next need."""
    global _entries
    with _lock:
        _entries = None
        _forget()


def when_changed(forget: Callable[[], object]) -> None:
    """Has `forget` called whenever backends come or go, for caches of what was decided with them."""
    _forgetters.append(forget)


def check(settings: Settings, known_types: Container[str] = ()) -> None:
    """Checks everything in the settings that needs the backends: `check_device` and `check_backends`."""
    check_device(settings, known_types)
    check_backends(settings)


def check_backends(settings: Settings) -> None:
    """Checks every backend's section of the settings; where its plugin is broken that can't be done, and isn't.

    Raises:
        SettingsError: as `options`, and for a section of a backend that nobody registered.
    """
    for name, section in settings.backends.items():
        entry = _entry(name)
        if entry is None:
            key = f"backends.{name}.{next(iter(section))}"
            near = nearest(name, _names())
            if settings.sources[key].startswith(ENVIRONMENT):  # perhaps not meant to be a backend's option at all
                near = nearest(settings.sources[key].removeprefix(ENVIRONMENT), _variables(), NEAR_VARIABLE) or near
            known = ", ".join(_names())
            raise SettingsError(f"{settings.sources[key]}: {key}: no backend is called {name!r}{near} (known: {known})")
        if entry.backend is not None:
            options(entry.backend, settings)


def check_device(settings: Settings, known_types: Container[str] = ()) -> None:
    """Checks that the device of the settings is "auto", a backend's name, or a device type; present or not.

    Raises:
        UnknownDeviceError: it is none of them; says where the setting came from.
    """
    name, _ = _split(settings.device)
    if name != AUTO and _entry(name) is None and not _is_type(name, known_types):
        raise _unknown(name, f"{settings.sources['device']}: device: ")


def _forget() -> None:
    for forget in _forgetters:
        forget()


def _ordered(entries: Iterable[Registered]) -> tuple[Registered, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.order))


def _entry(name: str) -> Registered | None:
    return next((entry for entry in registered() if entry.name == name), None)  # one that is shadowed comes later


def _candidates() -> Iterator[Backend]:
    """Backends that serve without being asked for by name."""
    for entry in registered():
        if entry.backend is not None and not entry.backend.interpreted and unavailable(entry.backend) is None:
            yield entry.backend


def _first(device_type: str) -> Backend | None:
    return next((backend for backend in _candidates() if backend.device_type == device_type), None)


def _chosen(device_type: str, settings: Settings, known_types: Container[str]) -> Backend | None:
    name, _ = _split(settings.device)
    if name != device_type:
        check_device(settings, known_types)
    if _entry(name) is not None and get(name).device_type == device_type:
        return available(name)
    return _first(device_type)


def _split(name: str) -> tuple[str, int | None]:
    form = DEVICE_FORM.fullmatch(name)
    if form is None:
        raise UnknownDeviceError(f"{name!r} is not a device: expected {FIELDS['device'].expected}")
    return form["name"], None if form["index"] is None else int(form["index"])


def _unknown(name: str, where: str = "") -> UnknownDeviceError:
    known = sorted({AUTO, *_names(), *TORCH_ONLY})
    return UnknownDeviceError(f"{where}no device is called {name!r}{nearest(name, known)} (known: {', '.join(known)})")


def _names() -> list[str]:
    return sorted({entry.name for entry in registered()})


def _is_type(kind: str, known_types: Container[str]) -> bool:
    served = (entry.backend.device_type for entry in registered() if entry.backend is not None)
    return kind in TORCH_ONLY or kind in known_types or kind in served


def _variables() -> list[str]:
    backends = [entry.backend for entry in registered() if entry.backend is not None]
    return [*VARIABLES, *map(variable, FIELDS), *(variable(b.name, option) for b in backends for option in b.options)]
