"""Who serves the tensors of a device under the settings in force, and the calls that were prepared for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tridal.devices import registry
from tridal.devices.settings import Settings, current
from tridal.devices.types import Backend, Op
from tridal.pytorch.devices import TORCH_TYPES

Forward = Callable[..., torch.Tensor]
"""run(input[, mask]): the softmax of tensors like those that the call was prepared for."""
Backward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""run(dY, Y): the gradient for tensors like those that the call was prepared for."""

log = logging.getLogger("tridal")

_CAPACITY = 64
_LOCK = threading.RLock()


class Place:
    """A device under some settings: the backend that serves its tensors, if any, and the calls prepared there."""

    __slots__ = ("autocast", "backend", "backwards", "by_torch", "device", "forwards", "index", "settings")

    def __init__(self, device: torch.device, settings: Settings) -> None:
        self.device = device
        self.settings = settings
        self.index = device.index or 0
        self.backend: Backend | None = registry.serving(device.type, settings, TORCH_TYPES)
        self.by_torch = self.backend is None and settings.fallback == "torch"
        self.autocast = autocast_key(device.type)
        self.forwards: dict[tuple[Any, ...], Call | None] = {}
        self.backwards: dict[tuple[Any, ...], Backward | None] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A forward that was prepared, and what its backward has to know of it."""

    run: Forward
    place: Place
    op: Op
    dim: int
    dtype: torch.dtype
    """The input's, and therefore the gradient's."""
    scale: float = 1.0
    """What the input is multiplied with first, and therefore the gradient, last."""


_places: dict[tuple[torch.device, Settings], Place] = {}
registry.on_change(_places.clear)


def served(device_type: str) -> bool:
    """Whether a backend serves tensors of that type under the settings in force here."""
    return registry.serving(device_type, current(), TORCH_TYPES) is not None


def place_of(device: torch.device) -> Place:
    """The place of a device under the settings in force here."""
    key = (device, current())
    try:
        return _places[key]
    except KeyError:
        pass
    with _LOCK:
        place = Place(*key)
        if place.by_torch:
            log.info("no available backend serves %s tensors: torch computes them", device.type)
        if len(_places) >= _CAPACITY:
            _places.clear()
        _places[key] = place
        return place


def autocast_key(device_type: str) -> Any:
    """The dispatch key under which autocast makes softmax of such tensors compute in float32; None if it never does."""
    name = f"Autocast{torch._C._dispatch_key_for_device(device_type)}"
    try:
        key = torch._C._dispatch_key_parse(name)
    except RuntimeError:  # a device type without autocast
        return None
    return key if torch._C._dispatch_has_kernel_for_dispatch_key("aten::softmax.int", name) else None
