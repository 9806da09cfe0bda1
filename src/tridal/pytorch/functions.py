"""The op: softmax and log_softmax with torch's meaning, on whatever device the tensor lives."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_unary

from tridal.devices import registry
from tridal.errors import StreamError
from tridal.ops.scale_mask import Extras, check_extras, composed
from tridal.pytorch import prepared as execute
from tridal.pytorch.autograd import eager, watched
from tridal.pytorch.call_guards import Fits, like
from tridal.pytorch.device_context import Call, Place, place_of
from tridal.pytorch.registered_ops import TORCH
from tridal.pytorch.validation import check

Name = Literal["softmax", "log_softmax"]


def softmax(
    input: torch.Tensor,
    dim: int = -1,
    dtype: torch.dtype | None = None,
    *,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    masked_rows: Literal["nan", "zero"] = "nan",
    stream: Any = None,
) -> torch.Tensor:
    """exp(input) / sum(exp(input)) along `dim`, as torch.softmax defines it.

    Args:
        input: a dense tensor of any shape and strides.
        dim: the dimension that sums to one; negative counts from the last.
        dtype: if given, the input is cast to it before the operation; required for integer and bool input.
        scale: what the input is multiplied with first.
        mask: broadcast to the input: added if floating; if boolean, elements where it is False are left out.
        causal: leaves row i of the last two dimensions its columns 0 to i, as in scaled_dot_product_attention.
        masked_rows: what a row is of which nothing but -inf is left: "nan", as in torch, or "zero".
        stream: a stream of the input's device to run on, as torch's stream object or as a raw handle. The caller
            orders it after whatever produced the input, as with any torch op. Default: the device's current stream.

    Returns:
        A contiguous tensor of the input's shape, in `dtype` or the input's dtype; under autocast in float32 where
        torch.softmax is. Sums are kept in float32 (float64 for float64). Rows that are all -inf, or hold NaN or +inf,
        give NaN.

    Raises:
        DTypeError, DimensionError, LayoutError, StreamError: the argument of that name is wrong.
        NoBackendError: no backend serves the tensor and the setting `fallback` is "error".
    """
    if scale is None and mask is None and not causal and masked_rows == "nan":
        return _apply("softmax", input, dim, dtype, stream)
    return _weighed(input, dim, dtype, Extras(1.0 if scale is None else scale, mask, causal, masked_rows), stream)


def log_softmax(
    input: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None, *, stream: Any = None
) -> torch.Tensor:
    """log(softmax(input)) along `dim`, computed without leaving the logarithm. Arguments as in `softmax`."""
    return _apply("log_softmax", input, dim, dtype, stream)


PUBLIC = {"softmax": softmax, "log_softmax": log_softmax}

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NO_STREAM = "stream= has no meaning in a compiled function: it runs on the stream that is current for it"

_compiling = torch.compiler.is_dynamo_compiling
_function_modes = torch._C._len_torch_function_stack
_grad_enabled = torch.is_grad_enabled
_key_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded

_repeated: dict[Name, tuple[Fits, Callable[[torch.Tensor], torch.Tensor]]] = {}
_latest: dict[Name, Call] = {}
registry.on_change(_repeated.clear)
registry.on_change(_latest.clear)


def _apply(name: Name, input: torch.Tensor, dim: int, dtype: torch.dtype | None, stream: Any) -> torch.Tensor:
    if _compiling():
        return _compiled(name, input, dim, dtype, stream)
    repeated = _repeated.get(name)
    if repeated is not None and stream is None and repeated[0](input, dim, dtype):
        return repeated[1](input)
    kind = type(input)
    if (kind is not torch.Tensor and kind is not torch.nn.Parameter) or stream is not None or type(dim) is not int:
        return _general(name, input, dim, dtype, stream)
    try:
        place = place_of(input.device)
        if place.by_torch:
            return TORCH[name](input, dim, dtype=dtype)
        if watched() or _function_modes():
            return _general(name, input, dim, dtype, stream)
        wanted = dtype
        if dtype is None and place.autocast is not None and not _key_excluded(place.autocast):
            wanted = autocast_dtype(input)
        call = execute.forward(place, name, input, dim, wanted)
        if call is None:
            return TORCH[name](input, dim, dtype=wanted)
        if _latest.get(name) is call:
            _remember(name, input, dim, dtype, call)
        _latest[name] = call
        if input.requires_grad and _grad_enabled():
            return eager(call)(input)
        return call.run(input)
    except (IndexError, NotImplementedError, RuntimeError, TypeError):
        if input.is_nested and stream is None:
            return TORCH[name](input, dim, dtype=dtype)
        check(input, dim, dtype)  # a clearer word than torch's, where there is one
        raise


def _remember(name: Name, input: torch.Tensor, dim: int, dtype: torch.dtype | None, call: Call) -> None:
    """Has further calls like this one, the second in a row, go straight to what was prepared."""
    fits = like(input, dim, dtype)
    if fits is not None and place_of(input.device) is call.place:
        grad = input.requires_grad and _grad_enabled()
        _repeated[name] = fits, eager(call) if grad else call.run


def _general(name: Name, input: torch.Tensor, dim: int, dtype: torch.dtype | None, stream: Any) -> torch.Tensor:
    """For all but a plain tensor: subclasses, transforms, modes, tracers, streams, and arguments that are wrong."""
    if has_torch_function_unary(input):
        public = PUBLIC[name]
        return handle_torch_function(public, (input,), input, dim, dtype, stream=stream)
    if isinstance(input, torch.Tensor) and input.is_nested and stream is None:
        return TORCH[name](input, dim, dtype=dtype)
    check(input, dim, dtype)
    dim, place = operator.index(dim), place_of(input.device)
    if stream is not None:
        if place.by_torch:
            kind = input.device.type
            raise StreamError(f"stream={stream!r}, but {kind} tensors are served by torch and have no stream")
        with _on_stream(stream, input):
            return _apply(name, input, dim, dtype, None)
    distributed = _is_distributed(input)
    if place.by_torch and not distributed:
        return TORCH[name](input, dim, dtype=dtype)
    if place.backend is None and not distributed:
        execute.serves(place, set())  # raises
    if dtype is None and _autocasts(place):
        dtype = autocast_dtype(input)
    return getattr(torch.ops.tridal, name).default(input, dim, dtype or input.dtype)  # type: ignore[no-any-return]


def _weighed(input: torch.Tensor, dim: int, dtype: torch.dtype | None, extras: Extras, stream: Any) -> torch.Tensor:
    """softmax of scores that are scaled or masked first."""
    if _compiling():
        return _weighed_compiled(input, dim, dtype, extras, stream)
    mask = extras.mask
    plain = type(input) in _PLAIN and (mask is None or type(mask) in _PLAIN) and stream is None and type(dim) is int
    if not plain or input.layout is not torch.strided or input.is_nested or (mask is not None and mask.requires_grad):
        return _weighed_general(input, dim, dtype, extras, stream)
    place = place_of(input.device)
    if place.by_torch or watched() or _function_modes():
        return _weighed_general(input, dim, dtype, extras, stream)
    if dtype is None and _autocasts(place):
        dtype = autocast_dtype(input)
    call = execute.weighed(place, input, dim, dtype, extras)
    if call is None:
        return _weighed_general(input, dim, dtype, extras, stream)
    given = () if mask is None else (mask,)
    if input.requires_grad and _grad_enabled():
        return eager(call)(input, *given)
    return call.run(input, *given)


def _weighed_general(
    input: torch.Tensor, dim: int, dtype: torch.dtype | None, extras: Extras, stream: Any
) -> torch.Tensor:
    """As `_general`. DTensors, which the op knows nothing of, get what their own ops compose."""
    if has_torch_function((input, extras.mask)):
        given = extras._asdict()
        return handle_torch_function(softmax, (input, extras.mask), input, dim, dtype, **given, stream=stream)
    check(input, dim, dtype)
    check_extras(input, dim, extras)
    if stream is not None:
        with _on_stream(stream, input):
            return _weighed(input, dim, dtype, extras, None)
    place = place_of(input.device)
    if dtype is None and _autocasts(place):
        dtype = autocast_dtype(input)
    return _as_op(place.by_torch, input, operator.index(dim), dtype or input.dtype, extras)


def _weighed_compiled(
    input: torch.Tensor, dim: int, dtype: torch.dtype | None, extras: Extras, stream: Any
) -> torch.Tensor:
    from tridal.pytorch import dynamo as tracing

    if stream is not None:
        raise StreamError(_NO_STREAM)
    check(input, dim, dtype)
    check_extras(input, dim, extras)
    kind = input.device.type
    if dtype is None and tracing.autocasts(kind) and torch.is_autocast_enabled(kind):
        dtype = autocast_dtype(input)
    return _as_op(not tracing.served(kind), input, dim, dtype or input.dtype, extras)


def _as_op(by_torch: bool, input: torch.Tensor, dim: int, dtype: torch.dtype, extras: Extras) -> torch.Tensor:
    mask = extras.mask
    if by_torch or input.is_nested or _is_distributed(input) or _is_distributed(mask):
        return composed(softmax, input, dim, dtype, extras)
    op = torch.ops.tridal.masked_softmax.default
    return op(input, mask, extras.scale, extras.causal, extras.zero, dim, dtype)  # type: ignore[no-any-return]


def _autocasts(place: Place) -> bool:
    return place.autocast is not None and not _key_excluded(place.autocast)


def _compiled(name: Name, input: torch.Tensor, dim: int, dtype: torch.dtype | None, stream: Any) -> torch.Tensor:
    """For torch.compile and torch.export, which trace it: one op, or torch's own where nobody serves the device."""
    from tridal.pytorch import dynamo as tracing

    if stream is not None:
        raise StreamError(_NO_STREAM)
    if not tracing.served(input.device.type) and not (tracing.distributes() and _is_distributed(input)):
        return TORCH[name](input, dim, dtype=dtype)
    if dtype is None and tracing.autocasts(input.device.type) and torch.is_autocast_enabled(input.device.type):
        dtype = autocast_dtype(input)
    return getattr(torch.ops.tridal, name).default(input, dim, dtype or input.dtype)  # type: ignore[no-any-return]


def _is_distributed(input: torch.Tensor | None) -> bool:
    """Whether it is a DTensor, whose rows may be spread over ranks; tridal's part for these is then imported."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or not isinstance(input, module.DTensor):
        return False
    from tridal.pytorch import dtensor as distributed  # noqa: F401

    return True


def autocast_dtype(input: torch.Tensor) -> torch.dtype | None:
    """What autocast makes of softmax's `dtype=None`: all floating dtypes but float64 are computed as float32."""
    return torch.float32 if input.is_floating_point() and input.dtype is not torch.float64 else None


def _on_stream(stream: Any, input: torch.Tensor) -> AbstractContextManager[Any]:
    """Makes a given stream current for the tensor's device, so that outputs, kernels and gradients all belong to it."""
    device = input.device
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
    input.record_stream(stream)
    return module.stream(stream)  # type: ignore[no-any-return]
