"""Registry of backends: chooses one for a device type or a device string, and checks the settings of backends.

`backend_table` has the entries.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import suppress
from typing import Any

from tridal.devices import plugins
from tridal.devices.backend_table import available as available
from tridal.devices.backend_table import clear as clear
from tridal.devices.backend_table import device_names as device_names
from tridal.devices.backend_table import find, names, unknown_device
from tridal.devices.backend_table import get as get
from tridal.devices.backend_table import invalidate as invalidate
from tridal.devices.backend_table import loaded as loaded
from tridal.devices.backend_table import on_change as on_change
from tridal.devices.backend_table import register as register
from tridal.devices.backend_table import registered as registered
from tridal.devices.backend_table import unregister as unregister
from tridal.devices.checked_backend import CheckedBackend
from tridal.devices.entry_points import IN_CODE as IN_CODE
from tridal.devices.lock import LOCK
from tridal.devices.plugins import AUTO, TORCH_ONLY
from tridal.devices.plugins import HOST as HOST
from tridal.devices.plugins import Registered as Registered
from tridal.devices.setting_table import checked_value, nearest_variable, parse_device, variable
from tridal.devices.settings import Settings, current
from tridal.devices.types import Backend, DeviceProperties
from tridal.errors import DeviceUnavailableError, SettingsError, TridalError, nearest

_serving_cache: dict[tuple[str, Settings], CheckedBackend | None] = {}
on_change(_serving_cache.clear)


def options(backend: Backend, settings: Settings) -> dict[str, Any]:
    """Gives each option of a backend its value in the settings, or else the option's default.

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
    """Selects the backend that serves tensors of a `torch.device.type`. None stands for torch.

    This is the backend that the settings name (by default the current settings), if it has this type; otherwise the
    first available backend of this type in `registered` that is not interpreted. torch computes CPU tensors unless the
    settings name a backend. The result is cached.

    Raises:
        UnknownDeviceError: the settings name a device that is neither known to a backend nor in `known_types`.
        DeviceUnavailableError, PluginError: as in `available`, for a backend that the settings name.
        SettingsError: as in `check_backends`.

    Example:
        >>> with tridal.use(device="interpreter"):
        ...     tridal.registry.serving("cpu").name
        'interpreter'
    """
    key = device_type, settings or current()
    with suppress(KeyError):
        return _serving_cache[key]  # without the lock, which a thread holds while it compiles or interprets
    with LOCK:
        _, chosen = key
        check_backends(chosen)
        name, _ = parse_device(chosen.device)
        if name != device_type:
            check_device(chosen, known_types)
        is_named = find(name) is not None and get(name).device_type == device_type
        if len(_serving_cache) >= 256:
            _serving_cache.clear()
        _serving_cache[key] = available(name, _location(chosen)) if is_named else _first_candidate(device_type)
        return _serving_cache[key]


def resolve_chosen(settings: Settings, known_types: Container[str] = ()) -> tuple[CheckedBackend | None, str]:
    """Resolves the device in the settings, as `resolve` does. The errors give the source of the setting."""
    check(settings, known_types)
    return resolve(settings.device, known_types, _location(settings))


def resolve(name: str, known_types: Container[str] = (), source: str = "") -> tuple[CheckedBackend | None, str]:
    """Resolves a device name to a backend and a torch device string such as "npu:1".

    The name is "auto", a backend's name or a device type; the latter two may have an index. "auto" means the first
    available accelerator, or the CPU if there is none. The backend is None if no backend serves the device type.

    Raises (the messages start with `source`):
        UnknownDeviceError: the name is not one of these, and not in `known_types`, the types that torch knows.
        DeviceUnavailableError: the backend is not available, or there is no device with this index.
        PluginError: the backend's plugin is broken.

    Example:
        >>> backend, device = tridal.registry.resolve("interpreter")
        >>> backend.name, device
        ('interpreter', 'cpu')
    """
    kind, index = parse_device(name)
    if kind == AUTO:
        backend = next(_candidates(), None)
        kind = HOST if backend is None else backend.device_type
    elif find(kind) is not None:
        backend = available(kind, source)
        kind = backend.device_type
    elif _is_device_type(kind, known_types):
        backend = _first_candidate(kind)
    else:
        raise unknown_device(kind, source)
    if index is None:
        return backend, kind
    if backend is not None:
        owner, count = f"backend {backend.name!r}", backend.device_count()
    else:
        owner, count = repr(kind), 1 if kind in TORCH_ONLY else index + 1  # torch counts the devices of other types
    if index >= count:
        present = f"{count} device{'s' * (count != 1)}, counted from 0"
        raise DeviceUnavailableError(f"{source}{name!r} does not exist: {owner} has {present}")
    return backend, f"{kind}:{index}"


def check(settings: Settings, known_types: Container[str] = ()) -> None:
    """Checks the parts of the settings that depend on backends, with `check_device` and `check_backends`."""
    check_device(settings, known_types)
    check_backends(settings)


def check_device(settings: Settings, known_types: Container[str] = ()) -> None:
    """Raises UnknownDeviceError if the setting `device` is not "auto", a backend's name or a device type."""
    name, _ = parse_device(settings.device)
    if name != AUTO and find(name) is None and not _is_device_type(name, known_types):
        raise unknown_device(name, _location(settings))


def check_backends(settings: Settings) -> None:
    """Raises SettingsError for an unknown backend or a wrong option. Skips backends whose plugin is broken."""
    plugins.check_names(settings, names())
    for name, section in settings.backends.items():
        entry = find(name)
        if entry is None:
            key = f"backends.{name}.{next(iter(section))}"
            source = settings.sources[key]
            variables = [variable(backend.name, option) for backend in loaded() for option in backend.options]
            near = nearest_variable(source, variables) or nearest(name, names())
            raise SettingsError(f"{source}: {key}: no backend is called {name!r}{near} (known: {', '.join(names())})")
        if entry.backend is not None:
            options(entry.backend, settings)


def find_architectures() -> tuple[dict[str, tuple[CheckedBackend, DeviceProperties]], list[str]]:
    """Asks all backends for the architectures that they can plan for. Describes the faults of plugins.

    Their devices need not be present. If several backends provide a name, the first one in `registered` keeps it.
    Another one gets "backend:name".
    """
    known: dict[str, tuple[CheckedBackend, DeviceProperties]] = {}
    problems = []
    for backend in loaded():
        try:
            found = backend.architectures()
        except TridalError as error:
            problems.append(str(error))
            continue
        for name, properties in found.items():
            if name in known:
                own, owner = f"{backend.name}:{name}", known[name][0].label
                problems.append(f"{backend.label}: architectures(): {owner} has {name!r}, so this one is {own!r}")
                name = own
            known[name] = backend, properties
    return known, problems


def _candidates() -> Iterator[CheckedBackend]:
    """Iterates over the backends that may be chosen automatically: available accelerators that are not interpreted."""
    compiled = (backend for backend in loaded() if not backend.interpreted and backend.device_type != HOST)
    return (backend for backend in compiled if backend.unavailable() is None)


def _first_candidate(device_type: str) -> CheckedBackend | None:
    return next((backend for backend in _candidates() if backend.device_type == device_type), None)


def _is_device_type(name: str, known_types: Container[str]) -> bool:
    return name in TORCH_ONLY or name in known_types or any(backend.device_type == name for backend in loaded())


def _location(settings: Settings) -> str:
    """Says where the device is set, as the start of an error message."""
    return f"{settings.sources['device']}: device: "
