"""Which device the settings choose, and which backends there are. The public view of the registry."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tridal import registry, settings
from tridal.errors import UnknownDeviceError


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
    if entry.backend is None:
        return BackendStatus(entry.name, entry.origin, None, False, entry.problem, None)
    reason = registry.unavailable(entry.backend)
    return BackendStatus(
        entry.name, entry.origin, entry.backend.device_type, reason is None, reason, entry.backend.install
    )


def device(name: str | None = None) -> torch.device:
    """The `torch.device` that the settings choose, or that a name in their form stands for.

    Raises UnknownDeviceError for a name that neither a backend nor torch has, and DeviceUnavailableError for a device
    that is not there.
    """
    return torch.device(registry.resolve(name or settings.current().device, _torch_types())[1])


def _torch_types() -> tuple[str, ...]:
    """Device types that this torch was built to know and that need no backend of ours."""
    names = ("cpu", "meta", "mps", "xpu", "hpu", "mtia", "cuda")
    return tuple(name for name in names if _present(name))


def _present(name: str) -> bool:
    if name in ("cpu", "meta"):
        return True
    module = getattr(torch, name, None)
    return module is not None and bool(module.is_available())


__all__ = ["BackendStatus", "UnknownDeviceError", "backends", "device"]
