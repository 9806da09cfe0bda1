"""The op: softmax and log_softmax with torch's meaning, on whatever device the tensor lives."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from tridal import registry, settings
from tridal.autograd import differentiable
from tridal.devices import TORCH_TYPES
from tridal.errors import DimensionError, DTypeError, LayoutError, NoBackendError, StreamError
from tridal.execute import dtype_name, log
from tridal.types import Backend

Name = Literal["softmax", "log_softmax"]


def softmax(
    input: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None, *, stream: Any = None
) -> torch.Tensor:
    """exp(input) / sum(exp(input)) along `dim`, as torch.softmax defines it.

    Args:
        input: a dense tensor of any shape and strides.
        dim: the dimension that sums to one; negative counts from the last.
        dtype: if given, the input is cast to it before the operation; required for integer and bool input.
        stream: a stream of the input's device to run on, as torch's stream object or as a raw handle. The caller
            orders it after whatever produced the input, as with any torch op. Default: the device's current stream.

    Returns:
        A contiguous tensor of the input's shape, in `dtype` or the input's dtype. Sums are kept in float32 (float64 for
        float64). Rows that are all -inf, or hold NaN or +inf, give NaN.

    Raises:
        DTypeError, DimensionError, LayoutError, StreamError: the argument of that name is wrong.
        NoBackendError: no backend serves the tensor and the setting `fallback` is "error".
    """
    return _apply("softmax", input, dim, dtype, stream)


def log_softmax(
    input: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None, *, stream: Any = None
) -> torch.Tensor:
    """log(softmax(input)) along `dim`, computed without leaving the logarithm. Arguments as in `softmax`."""
    return _apply("log_softmax", input, dim, dtype, stream)


_TORCH = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}


def _apply(name: Name, input: torch.Tensor, dim: int, dtype: torch.dtype | None, stream: Any) -> torch.Tensor:
    try:
        backend = registry.serving(input.device.type, settings.current(), TORCH_TYPES)
        if backend is not None:
            return _on_backend(backend, name, input, dim, dtype, stream)
        if stream is None and settings.current().fallback == "torch":
            _say_fallback(input.device.type, None)
            return _TORCH[name](input, dim, dtype=dtype)
    except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError):
        _check(input, dim, dtype)  # a clearer word than torch's, where there is one
        raise
    _check(input, dim, dtype)
    if stream is not None:
        raise StreamError(f"stream={stream!r}, but {input.device.type} tensors are served by torch and have no stream")
    raise _refusal(input.device.type, None)


def _on_backend(
    backend: Backend, name: Name, input: torch.Tensor, dim: int, dtype: torch.dtype | None, stream: Any
) -> torch.Tensor:
    out_dtype = dtype or input.dtype
    _check(input, dim, dtype)
    if input.numel() == 0:
        return _TORCH[name](input, dim, dtype=dtype)
    needed = {dtype_name(out_dtype)} | ({dtype_name(input.dtype)} if input.is_floating_point() else set())
    if not needed <= backend.dtypes:
        missing = ", ".join(sorted(needed - backend.dtypes))
        if settings.current().fallback == "error":
            raise _refusal(input.device.type, f"backend {backend.name!r} does not compute {missing}")
        _say_fallback(input.device.type, f"backend {backend.name!r} does not compute {missing}")
        with _on_stream(stream, input):
            return _TORCH[name](input, dim, dtype=dtype)
    with _on_stream(stream, input):
        if input.dim() == 0:
            return differentiable(backend, name, input.reshape(1), 0, out_dtype).reshape(())
        return differentiable(backend, name, input, dim % input.dim(), out_dtype)


def _check(input: torch.Tensor, dim: int, dtype: torch.dtype | None) -> None:
    """Raises what is wrong with the arguments, if anything is that torch has a plain rule for."""
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"input must be a torch.Tensor, got {type(input).__name__}")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype or None, got {dtype!r}")
    if isinstance(dim, bool) or not hasattr(dim, "__index__"):
        raise TypeError(f"dim must be an int, got {dim!r}")
    if input.layout is not torch.strided:
        raise LayoutError(
            f"softmax of a tensor with layout {input.layout} is not defined here: use torch.sparse.softmax, or to_dense()"
        )
    out_dtype = dtype or input.dtype
    if input.dtype.is_complex or out_dtype.is_complex:
        raise DTypeError(f"softmax is not defined for complex numbers (input {input.dtype}, dtype {dtype})")
    if not out_dtype.is_floating_point:
        advice = "" if dtype is not None else ", for example dtype=torch.float32"
        raise DTypeError(
            f"softmax of {input.dtype} to {out_dtype} is not defined: pass a floating-point dtype={advice and advice}"
            if dtype is None
            else f"softmax can't give {dtype}: dtype must be a floating-point dtype"
        )
    rank = max(input.dim(), 1)
    if not -rank <= dim < rank:
        raise DimensionError(
            f"dim {dim} is out of range for a tensor of shape {tuple(input.shape)}: expected {-rank} to {rank - 1}"
        )


def _on_stream(stream: Any, input: torch.Tensor) -> AbstractContextManager[Any]:
    """Makes a given stream current for the tensor's device, so that outputs, kernels and gradients all belong to it."""
    if stream is None:
        return nullcontext()
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


def _refusal(device_type: str, detail: str | None) -> NoBackendError:
    known = ", ".join(sorted(entry.name for entry in registry.registered()))
    return NoBackendError(
        f"{detail or f'no available backend serves {device_type} tensors'}, and fallback is 'error'; "
        f"set fallback='torch' or use one of the backends {known} (`tridal doctor` says which are available)"
    )


@functools.cache
def _say_fallback(device_type: str, detail: str | None) -> None:
    """Says once for each cause that torch computes instead of a tridal kernel."""
    if detail is None:
        log.info("no backend serves %s tensors: torch computes them", device_type)
    else:
        log.warning("%s: torch computes such %s tensors", detail, device_type)
