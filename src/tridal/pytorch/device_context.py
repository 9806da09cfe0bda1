"""Device contexts: the backend of a device under the current settings."""

from __future__ import annotations

import logging

import torch

from tridal.devices import registry
from tridal.devices.checked_backend import CheckedBackend
from tridal.devices.settings import Settings, current
from tridal.pytorch.bounded_cache import BoundedCache
from tridal.pytorch.devices import TORCH_TYPES
from tridal.pytorch.torch.private import constant_in_graphs

log = logging.getLogger("tridal")

_contexts: BoundedCache[tuple[torch.device, Settings], DeviceContext] = BoundedCache(64)
registry.on_change(_contexts.clear)


class DeviceContext:
    """The backend of a device under given settings, or None."""

    __slots__ = ("backend", "device", "has_autocast", "index", "settings", "torch_computes")

    def __init__(self, device: torch.device, settings: Settings) -> None:
        self.device = device
        self.settings = settings
        self.index = device.index or 0
        self.backend: CheckedBackend | None = registry.serving(device.type, settings, TORCH_TYPES)
        self.torch_computes = self.backend is None and settings.fallback == "torch"
        self.has_autocast = has_autocast(device.type)


@constant_in_graphs
def is_served(device_type: str) -> bool:
    """Returns whether a backend serves tensors of this device type under the current settings.

    A compiled graph keeps the result, but its ops select the backend again at each call.
    """
    return registry.serving(device_type, current(), TORCH_TYPES) is not None


@constant_in_graphs
def has_autocast(device_type: str) -> bool:
    """Returns whether autocast computes softmax in float32 on a device type. The CPU's autocast does not."""
    return device_type != "cpu" and torch.amp.is_autocast_available(device_type)


def device_context(device: torch.device) -> DeviceContext:
    """Returns the context of a device under the current settings. Creates it if there is none."""
    key = (device, current())
    try:
        return _contexts[key]
    except KeyError:
        pass
    context = DeviceContext(*key)
    if context.torch_computes:
        log.info("no available backend serves %s tensors: torch computes them", device.type)
    _contexts[key] = context
    return context
