"""`tridal.device` and `tridal.backends`: the device that the settings choose, and the registered backends."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tridal.devices import registry, settings
from tridal.errors import DeviceUnavailableError


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """The state of one registered backend, as `tridal.backends()` returns it."""

    name: str
    origin: str
    """Distribution and version that registered the backend."""
    device_type: str | None
    available: bool
    reason: str | None
    """The reason why the backend is not available; None if it is available."""
    install: str | None
    """One line that says how to install the backend."""


def backends() -> tuple[BackendStatus, ...]:
    """Returns the state of every registered backend. Never raises.

    Example:
        >>> status = {backend.name: backend for backend in tridal.backends()}
        >>> status["interpreter"].available, status["interpreter"].reason
        (True, None)
    """
    return tuple(map(_status, registry.registered()))


def _status(entry: registry.Registered) -> BackendStatus:
    backend = entry.backend
    if backend is None:
        return BackendStatus(entry.name, entry.origin, None, False, entry.fault, None)
    reason = entry.fault or backend.unavailable()
    return BackendStatus(entry.name, entry.origin, backend.device_type, reason is None, reason, backend.install)


def device(name: str | None = None) -> torch.device:
    """Returns the `torch.device` of a backend or a device type ("npu", "cuda:1"), or the one that the settings choose.

    Raises:
        TypeError: the name is not a string.
        UnknownDeviceError: neither a backend nor torch has the name.
        DeviceUnavailableError: the device is not available on this machine.
        SettingsError: the settings cannot be used.

    Example:
        >>> tridal.device("interpreter")
        device(type='cpu')
    """
    if name is None:
        backend, found = registry.resolve_chosen(settings.current(), TORCH_TYPES)
    elif not isinstance(name, str):
        raise TypeError(f"name must be a device name such as 'cpu', got {name!r}")
    else:
        backend, found = registry.resolve(name, TORCH_TYPES)
    try:
        return torch.device(found)
    except RuntimeError as error:
        if backend is None:
            raise
        raise DeviceUnavailableError(f"{backend.label}: torch does not know its device type: {error}") from error


class _TorchTypes:
    """The device types that torch supports on this machine. Only the operator `in` is defined."""

    def __contains__(self, name: object) -> bool:
        try:
            return bool(torch.get_device_module(torch.device(str(name)).type).is_available())
        except (RuntimeError, AttributeError):
            return False


TORCH_TYPES = _TorchTypes()
