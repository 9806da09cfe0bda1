"""The backend that serves a device's tensors under the current settings, and the calls that are prepared for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tridal.devices import registry
from tridal.devices.settings import Settings, current
from tridal.devices.types import Backend
from tridal.ops.row_op import RowOp
from tridal.pytorch import private
from tridal.pytorch.devices import TORCH_TYPES

Forward = Callable[..., torch.Tensor]
"""run(input[, mask]): the result for tensors like those that the call was prepared for."""
Backward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""run(dY, saved): the gradient for tensors like those that the call was prepared for."""

log = logging.getLogger("tridal")

_CAPACITY = 64
_LOCK = threading.RLock()


class DeviceContext:
    """A device under some settings: the backend that serves its tensors, if any, and the calls prepared for them."""

    __slots__ = ("autocast", "backend", "backwards", "device", "forwards", "index", "settings", "torch_computes")

    def __init__(self, device: torch.device, settings: Settings) -> None:
        self.device = device
        self.settings = settings
        self.index = device.index or 0
        self.backend: Backend | None = registry.serving(device.type, settings, TORCH_TYPES)
        self.torch_computes = self.backend is None and settings.fallback == "torch"
        self.autocast = private.autocast_key(device.type)
        self.forwards: dict[tuple[Any, ...], PreparedCall | None] = {}
        self.backwards: dict[tuple[Any, ...], Backward | None] = {}


@dataclass(frozen=True, slots=True, eq=False)
class PreparedCall:
    """A prepared forward, and what its backward needs to know."""

    run: Forward
    context: DeviceContext
    op: RowOp
    dim: int
    dtype: torch.dtype
    """dtype of the input, and so of its gradient."""
    backward_parameters: tuple[float | None, ...]


_contexts: dict[tuple[torch.device, Settings], DeviceContext] = {}
registry.on_change(_contexts.clear)


def is_served(device_type: str) -> bool:
    """Whether a backend serves tensors of that type under the current settings."""
    return registry.serving(device_type, current(), TORCH_TYPES) is not None


def device_context(device: torch.device) -> DeviceContext:
    """The context of a device under the current settings."""
    key = (device, current())
    try:
        return _contexts[key]
    except KeyError:
        pass
    with _LOCK:
        context = DeviceContext(*key)
        if context.torch_computes:
            log.info("no available backend serves %s tensors: torch computes them", device.type)
        if len(_contexts) >= _CAPACITY:
            _contexts.clear()
        _contexts[key] = context
        return context
