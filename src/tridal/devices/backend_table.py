"""The table of backends: entries of installed plugins and of `register`, and the lookup by name.

Importing this module loads no backend; the first lookup does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from tridal.devices import plugins
from tridal.devices.checked_backend import CheckedBackend, forget_answers
from tridal.devices.entry_points import IN_CODE, order
from tridal.devices.lock import LOCK
from tridal.devices.plugins import AUTO, HOST, RESERVED, TORCH_ONLY, Registered
from tridal.devices.settings import current
from tridal.devices.types import Backend, find_architecture
from tridal.errors import DeviceUnavailableError, PluginError, SettingsError, UnknownDeviceError, did_you_mean, nearest

_ANY_ACCELERATOR = ("gpu", "gpus", "accelerator")
"""Words that stand for an accelerator of any kind. The error for them suggests all accelerators."""

_entries: tuple[Registered, ...] | None = None
_discovering = False
_invalidators: list[Callable[[], object]] = [forget_answers]


def registered() -> tuple[Registered, ...]:
    """Lists all entries, including broken and shadowed plugins: bundled backends first, then sorted by name.

    Example:
        >>> [entry.name for entry in tridal.registry.registered()][:5]
        ['cuda', 'interpreter', 'npu', 'rocm', 'xpu']
    """
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
    """Lists the backends that loaded without a fault. They may be unavailable on this machine."""
    return [entry.backend for entry in registered() if entry.backend is not None]


def get(name: str) -> CheckedBackend:
    """Finds a backend by name, available or not. Raises UnknownDeviceError or PluginError.

    Example:
        >>> tridal.registry.get("rocm").device_type  # torch's own name for AMD GPUs
        'cuda'
    """
    entry = find(name)
    if entry is None:
        raise unknown_device(name)
    if entry.backend is None:
        raise PluginError(f"backend {name!r} of {entry.origin} cannot be used: {entry.fault}")
    return entry.backend


def available(name: str, source: str = "") -> CheckedBackend:
    """Finds an available backend by name. Raises DeviceUnavailableError if it is unavailable, and the errors of `get`.

    The message starts with `source` and names the other backends of the same device type.

    Example:
        >>> tridal.registry.available("interpreter").device_type
        'cpu'
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
            f"{source}{name!r} is not available: {reason}. Requirements: {backend.install}. {''.join(same_type)}"
            f"{AUTO!r} selects the first available device"
        )
    return backend


def register(backend: Backend) -> None:
    """Adds a backend object without a plugin package, for a notebook or a test.

    Raises PluginError if the object does not follow the protocol `Backend`, or if its name is already in use.

    Example:
        >>> from tridal.types import BackendBase, DeviceProperties, KernelConfig, LaunchPlan
        >>> class Mine(BackendBase):
        ...     protocol, name, device_type = 2, "mine", "privateuseone"
        ...     devices = {"mine1": DeviceProperties("Mine", "mine1", cores=2)}
        ...     def plan(self, problem, device, probe, options):
        ...         return LaunchPlan(KernelConfig("column_loop", 1, 64), device.cores, "always the same")
        >>> tridal.registry.register(Mine())
        >>> tridal.plan(1000, 1000, arch="mine1").programs
        2
    """
    name = str(getattr(backend, "name", None))
    with LOCK:
        owner = find(name)
        fault = f"{owner.origin} already uses this name" if owner else plugins.find_fault(backend, name)
        if fault:
            raise PluginError(f"backend {name!r} cannot be registered: {fault}")
        entries = [*registered(), Registered(name, IN_CODE, CheckedBackend(backend, IN_CODE))]
        replace_entries(sorted(entries, key=lambda entry: order(entry.name, entry.origin)))


def unregister(name: str) -> None:
    """Removes a backend that `register` added. Raises UnknownDeviceError if there is none with this name.

    Example:
        >>> tridal.registry.unregister("cuda")
        Traceback (most recent call last):
        tridal.errors.UnknownDeviceError: no backend 'cuda' was registered in code
    """
    with LOCK:
        in_code = {entry.name: entry for entry in registered() if entry.origin == IN_CODE}
        if name not in in_code:
            raise UnknownDeviceError(f"no backend {name!r} was registered in code{nearest(name, in_code)}")
        replace_entries(entry for entry in registered() if entry is not in_code[name])


def clear() -> None:
    """Removes all entries, including those that `register` added. The next lookup discovers the plugins again.

    Example:
        >>> tridal.registry.clear()
        >>> tridal.registry.get("interpreter").name  # its plugin is found again
        'interpreter'
    """
    replace_entries(None)


def replace_entries(entries: Iterable[Registered] | None) -> None:
    """Replaces all entries. None makes the next lookup discover the plugins again."""
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


def find(name: str) -> Registered | None:
    """Finds the entry with a name, which may be broken. The first one is not shadowed."""
    return None if name in RESERVED else next((entry for entry in registered() if entry.name == name), None)


def names() -> list[str]:
    """The names of all entries, also of those that are broken."""
    return sorted({entry.name for entry in registered()})


def device_names() -> list[str]:
    """Lists "auto", all backends, and the device types that every torch build has."""
    return sorted({AUTO, *names(), *TORCH_ONLY})


def unknown_device(name: str, source: str = "") -> UnknownDeviceError:
    """Makes the error for a name that is no device. The message suggests similar names."""
    known = device_names()
    accelerators = [b.name for b in loaded() if b.device_type != HOST and not b.interpreted]
    near = did_you_mean(accelerators) if name.lower() in _ANY_ACCELERATOR else nearest(name, known)
    for backend in loaded() if name.lower() not in known else ():
        with suppress(Exception):  # a third party's backend can raise anything
            if find_architecture(name, backend.architectures()) is not None:
                near = f"; it is an architecture of the device {backend.name!r}"
                break
    return UnknownDeviceError(f"{source}no device is called {name!r}{near} (known: {', '.join(known)})")
