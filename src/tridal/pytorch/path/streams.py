"""The argument `stream` of the functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from tridal.errors import StreamError
from tridal.ops.argument_checks import wrong
from tridal.pytorch.device_context import DeviceContext, device_context


def compiled_stream(op: str) -> StreamError:
    """Returns the error of an op that a compiled function calls with a stream."""
    return StreamError(f"{op}: stream= has no meaning in a compiled function, which runs on the current stream")


def call_on_stream(op: str, stream: Any, tensors: Sequence[Any], call: Callable[[], Any]) -> Any:
    """Returns call(), which computes an op of these tensors without the argument `stream`, on a stream.

    Raises:
        StreamError: see `on_stream`. Or a compiled function makes the call.
    """
    if torch.compiler.is_dynamo_compiling():
        raise compiled_stream(op)
    with on_stream(op, stream, device_context(tensors[0].device), *tensors):
        return call()


def on_stream(
    op: str, stream: Any, context: DeviceContext, *tensors: torch.Tensor | None
) -> AbstractContextManager[Any]:
    """Returns a context in which a stream is current on the context's device. All launches and the backward use it.

    Raises:
        StreamError: it is no stream of the device, or torch computes the device's tensors.
    """
    device = context.device
    if context.torch_computes:
        served = f"{device.type} tensors are served by torch and have no stream"
        raise StreamError(wrong(op, "stream", "be None", repr(stream), served))
    module, hint = torch.get_device_module(device.type), ""
    expected = f"be a torch stream of {device} or a raw handle (int)"
    if isinstance(stream, int) and not isinstance(stream, bool):
        if hasattr(module, "ExternalStream"):
            stream = module.ExternalStream(stream, device=device)
        else:
            expected, hint = f"be a torch stream of {device}", f"{device.type} devices take no raw stream handle"
    owner = None if isinstance(stream, torch.Tensor) else getattr(stream, "device", None)
    if owner != device:
        got = f"a stream of {owner}" if isinstance(owner, torch.device) else repr(stream)
        raise StreamError(wrong(op, "stream", expected, got, hint))
    for tensor in tensors:
        if tensor is not None and tensor.device == device:
            tensor.record_stream(stream)
    return module.stream(stream)  # type: ignore[no-any-return]
