"""The argument `stream` of the functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from tridal.errors import StreamError
from tridal.pytorch.device_context import DeviceContext, device_context


def call_on_stream(stream: Any, tensors: Sequence[Any], call: Callable[[], Any]) -> Any:
    """Returns call(), which computes an op of these tensors without the argument `stream`, on a stream.

    Raises:
        StreamError: see `on_stream`. Or a compiled function makes the call.
    """
    if torch.compiler.is_dynamo_compiling():
        raise StreamError("stream= has no meaning in a compiled function, which runs on the current stream")
    with on_stream(stream, device_context(tensors[0].device), *tensors):
        return call()


def on_stream(stream: Any, context: DeviceContext, *tensors: torch.Tensor | None) -> AbstractContextManager[Any]:
    """Returns a context in which a stream is current on the context's device. All launches and the backward use it.

    Raises:
        StreamError: it is no stream of the device, or torch computes the device's tensors.
    """
    device = context.device
    if context.torch_computes:
        raise StreamError(f"stream={stream!r}, but {device.type} tensors are served by torch and have no stream")
    module = torch.get_device_module(device.type)
    if isinstance(stream, int) and not isinstance(stream, bool):
        if not hasattr(module, "ExternalStream"):
            raise StreamError(f"stream={stream}: {device.type} devices take no raw stream handle")
        stream = module.ExternalStream(stream, device=device)
    owner = getattr(stream, "device", None)
    if not isinstance(owner, torch.device):
        raise StreamError(f"stream must be a torch stream or a raw handle (int), got {type(stream).__name__}")
    if owner != device:
        raise StreamError(f"the stream belongs to {owner}, but the input is on {device}: use a stream of {device}")
    for tensor in tensors:
        if tensor is not None and tensor.device == device:
            tensor.record_stream(stream)
    return module.stream(stream)  # type: ignore[no-any-return]
