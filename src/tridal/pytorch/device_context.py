"""Device contexts: the backend of a device under the current settings, and why its kernels do not compute a call."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

import torch

from tridal.devices import registry
from tridal.devices.checked_backend import CheckedBackend
from tridal.devices.settings import Settings, current
from tridal.errors import NoBackendError
from tridal.pytorch.call_records import RECORDERS, dtype_name, record_torch
from tridal.pytorch.devices import TORCH_TYPES
from tridal.pytorch.torch.private import constant_in_graphs

log = logging.getLogger("tridal")


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
    return _context(device, current())


@functools.lru_cache(maxsize=64)
def _context(device: torch.device, settings: Settings) -> DeviceContext:
    context = DeviceContext(device, settings)
    if context.torch_computes:
        log.info("no available backend serves %s tensors: torch computes them", device.type)
    return context


registry.on_change(_context.cache_clear)


def has_memory(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor has elements in memory, or is a meta tensor, which represents a new tensor."""
    return tensor.numel() > 0 and (tensor.is_meta or tensor.data_ptr() != 0)


def backend_computes(context: DeviceContext, dtypes: set[torch.dtype]) -> bool:
    """Returns whether kernels compute these dtypes on the context's device. If not, logs the reason once.

    Raises:
        NoBackendError: no kernel computes them, and the setting `fallback` is "error".
    """
    reason = _unsupported(context, dtypes)
    if reason is None:
        return True
    if context.settings.fallback == "error":
        known = ", ".join(sorted(entry.name for entry in registry.registered()))
        raise NoBackendError(
            f"{reason}, and fallback is 'error' ({context.settings.sources['fallback']}): set fallback to 'torch', or "
            f"device to one of the backends {known} (`tridal doctor` shows which are available)"
        )
    _log_fallback(reason)
    return False


def _unsupported(context: DeviceContext, dtypes: set[torch.dtype]) -> str | None:
    """The reason why no kernel computes these dtypes on the context's device; None if a kernel does."""
    if context.backend is None:
        return f"no available backend serves {context.device.type} tensors"
    missing = sorted({dtype_name(dtype) for dtype in dtypes} - context.backend.dtypes)
    return f"backend {context.backend.name!r} does not support {', '.join(missing)}" if missing else None


def record_torch_call(
    op: str, dtype: torch.dtype | None, *tensors: torch.Tensor | None, otherwise: str | None = None
) -> None:
    """Records a call with this result dtype, which torch computes, and the reason.

    `otherwise` is the reason if a backend computes the dtypes and the tensors have memory.
    """
    if RECORDERS:
        present = [tensor for tensor in tensors if tensor is not None]
        record_torch(op, present[0], _why_torch(dtype, present, otherwise))


def _why_torch(dtype: torch.dtype | None, tensors: Sequence[torch.Tensor], otherwise: str | None) -> str:
    if tensors[0].is_nested:
        return "the tensor is nested"
    dtypes = {dtype or tensors[0].dtype, *(tensor.dtype for tensor in tensors if tensor.is_floating_point())}
    if (reason := _unsupported(device_context(tensors[0].device), dtypes)) is not None:
        return reason
    if not all(has_memory(tensor) and (tensor.dim() or otherwise) for tensor in tensors):
        return "the tensor has no elements, no memory or no dims"
    return otherwise or "no kernel supports the strides, the scale or the mask"


@functools.cache
def _log_fallback(reason: str) -> None:
    log.warning("%s: torch computes them", reason)
