"""Which device the settings choose, and which backends there are: the public view of the registry."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tridal.devices import registry, settings


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """What `tridal.backends()` says of one backend."""

    name: str
    origin: str
    """Distribution and version that it came with."""
    device_type: str | None
    available: bool
    reason: str | None
    """Why it is not available; None if it is."""
    install: str | None
    """How to get it, in one line."""


def backends() -> tuple[BackendStatus, ...]:
    """Every registered backend, whether it is available here, and the reason where not. Never raises."""
    return tuple(_status(entry) for entry in registry.registered())


def _status(entry: registry.Registered) -> BackendStatus:
    backend = entry.backend
    if backend is None:
        return BackendStatus(entry.name, entry.origin, None, False, entry.problem, None)
    reason = entry.problem or registry.unavailable(backend)
    return BackendStatus(entry.name, entry.origin, backend.device_type, reason is None, reason, backend.install)


def device(name: str | None = None) -> torch.device:
    """The `torch.device` that the settings choose, or that a name in their form ("npu", "cuda:1") stands for.

    Raises UnknownDeviceError for a name that neither a backend nor torch has, and DeviceUnavailableError for a device
    that is not there; SettingsError for settings that cannot be used.
    """
    if name is None:
        chosen = settings.current()
        registry.check(chosen, TORCH_TYPES)
        name = chosen.device
    return torch.device(registry.resolve(name, TORCH_TYPES)[1])


class _TorchTypes:
    """Names of the device types that this torch can allocate on without a backend of ours, to be asked `in`."""

    def __contains__(self, name: object) -> bool:
        try:
            return bool(torch.get_device_module(torch.device(str(name)).type).is_available())
        except (RuntimeError, AttributeError):
            return False


TORCH_TYPES = _TorchTypes()
