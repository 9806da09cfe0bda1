"""Prepared calls: cached functions that launch the kernel of an op for plain tensors.

The cache key contains the arguments of the op, and what decides how memory is read: shapes, strides, dtypes, alignment
and negative bits. If a call is in the cache, it only allocates the result and launches the kernel. This module supports
neither autograd nor tensor subclasses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tridal.devices import registry
from tridal.errors import NoBackendError
from tridal.ops.row_op import RowOp
from tridal.ops.scale_mask import ScoreModification
from tridal.pytorch import private
from tridal.pytorch.binding import bind, dtype_name
from tridal.pytorch.call_records import RECORDERS, CallRecord, record
from tridal.pytorch.device_context import DeviceContext, PreparedCall, RowRun, log
from tridal.pytorch.op_call import OpCall
from tridal.pytorch.validation import check_call
from tridal.runtime.row_layout import contiguous_strides
from tridal.runtime.specialization import ADDRESS_BITS


def forward(
    context: DeviceContext,
    input: torch.Tensor,
    op: RowOp,
    dim: int,
    dtype: torch.dtype | None,
    parameters: tuple[float, ...] = (),
    modification: ScoreModification | None = None,
) -> PreparedCall | None:
    """Returns the prepared call of an op for a tensor on the context's device; None if torch has to compute it.

    Raises:
        TypeError, DTypeError, DimensionError, LayoutError: see `tridal.softmax`.
        NoBackendError: no backend computes the dtypes, and the setting `fallback` is "error".
    """
    address = input.data_ptr()
    alignment = address & ADDRESS_BITS if address else None  # a tensor at address 0 is empty or has no memory
    key: tuple[Any, ...] = (
        op, dim, dtype, input.shape, input.stride(), input.dtype, alignment, input.is_neg(), parameters
    )  # fmt: skip
    if modification is not None:
        scale, mask, causal, zero_masked_rows = modification
        key += (scale, None if mask is None else _description(mask), causal, zero_masked_rows)
    try:
        return context.forwards[key]
    except KeyError:
        call = OpCall(op, dim, dtype, parameters, modification)
        run = _prepare(context, call, input)
        prepared = None if run is None else PreparedCall(run, context, call.gradient(input.dtype))
        context.forwards[key] = prepared
        return prepared


def _description(mask: torch.Tensor) -> tuple[Any, ...]:
    """Returns the part of the cache key that describes a mask."""
    address = mask.data_ptr()
    alignment = address & ADDRESS_BITS if address else None
    return mask.shape, mask.stride(), mask.dtype, alignment, mask.is_neg(), mask.device


def backward(context: DeviceContext, call: OpCall, grad: torch.Tensor, saved: torch.Tensor) -> RowRun | None:
    """Returns run(dY, saved) for tensors like `grad` and `saved`; None if torch has to compute the gradient.

    Both tensors must have the same shape and device. This is checked only if the call is not in the cache.

    Raises:
        DTypeError, DimensionError, LayoutError: the gradient is not defined for these tensors.
        NoBackendError: see `forward`.
    """
    address, saved_address = grad.data_ptr(), saved.data_ptr()
    alignment = (address & ADDRESS_BITS, saved_address & ADDRESS_BITS) if address and saved_address else None
    key = (
        call, grad.shape, grad.stride(), grad.dtype, alignment, grad.is_neg(),
        saved.dtype, saved.is_contiguous(), saved.is_neg(),
    )  # fmt: skip
    try:
        return context.backwards[key]
    except KeyError:
        run = context.backwards[key] = _prepare(context, call, grad, saved)
        return run


def _prepare(
    context: DeviceContext, call: OpCall, first: torch.Tensor, saved: torch.Tensor | None = None
) -> RowRun | None:
    """Returns run(input[, mask]) of an op, or run(dY, saved) of a gradient; None if torch has to compute it."""
    tensors = (first,) if saved is None else (first, saved)
    check_call(call, *tensors)
    dtype, second = call.dtype or first.dtype, call.mask if saved is None else saved
    read = {tensor.dtype for tensor in (first, second) if tensor is not None and tensor.is_floating_point()}
    if not backend_computes(context, {dtype, *read}) or not all(map(_has_memory, tensors)):
        return None
    assert context.backend is not None
    call = call._replace(dim=call.dim % first.dim())
    written = copy_dtype = dtype
    convert: Callable[[torch.Tensor], torch.Tensor] | None = None
    readable = first.is_floating_point() and not first.is_neg()
    if saved is None:
        # The kernel reads the input directly if the cast to `dtype` is exact. Otherwise, torch casts the input first.
        readable = readable and torch.promote_types(first.dtype, dtype) == dtype
        if readable and context.settings.batch_invariant:
            copy_dtype = first.dtype  # a copy must have the kernel of a tensor that is not copied
        if second is not None and second.dtype is torch.bool:
            convert = _as_bytes
    else:
        # torch casts float64 to 16 bits, because Triton's interpreter stores wrong values when it casts to bfloat16.
        through_float64 = saved.dtype is torch.float64 and dtype.itemsize == 2
        written, copy_dtype = torch.float64 if through_float64 else dtype, first.dtype
        named = zip(call.kernel.parameters, call.parameters, strict=True)  # a scale of None skips the multiplication
        call = call._replace(parameters=tuple(None if name == "scale" and v == 1 else v for name, v in named))
        misaligned = context.settings.batch_invariant and saved.data_ptr() & ADDRESS_BITS  # it depends on the batch
        if saved.is_neg() or not saved.is_contiguous() or misaligned:
            saved, convert = _contiguous_like(saved, saved.dtype), contiguous_copy
    direct_launch = bind(context, call, first, written, saved) if readable else None
    bound = direct_launch or bind(context, call, _contiguous_like(first, copy_dtype), written, saved)
    if bound is None:
        return None
    launch_on, plan = bound
    allocate, copied = _allocator(context, first, written), direct_launch is None
    stream, index = context.backend.stream, context.index
    computed = CallRecord(
        call.kernel.name, tuple(first.shape), dtype_name(first.dtype), str(context.device), context.backend.name,
        plan.schedule, None,
    )  # fmt: skip

    def unary(input: torch.Tensor) -> torch.Tensor:
        out = allocate(input)
        if copied:  # in the result's dtype, the kernel works in place, without another allocation
            input = _copy(out, input) if copy_dtype is written else contiguous_copy(input)
        launch_on(stream(index), out, input)
        if RECORDERS:
            record(computed)
        return out

    def binary(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        out = allocate(first)
        if copied:
            first = _copy(out, first) if copy_dtype is written else contiguous_copy(first)
        launch_on(stream(index), out, first, second if convert is None else convert(second))
        if RECORDERS:
            record(computed)
        return out if written is dtype else out.to(dtype)

    return unary if second is None else binary


def _copy(out: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Copies a tensor to `out`. torch's copy_ ignores the negative bit of a tensor when it casts to a 16-bit dtype."""
    return out.copy_(tensor.resolve_neg() if tensor.is_neg() and tensor.dtype is not out.dtype else tensor)


def _as_bytes(mask: torch.Tensor) -> torch.Tensor:
    return mask.view(torch.uint8)


def contiguous_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy in new memory, which is aligned. torch's `contiguous` returns a contiguous tensor itself."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _allocator(context: DeviceContext, like: torch.Tensor, dtype: torch.dtype) -> RowRun:
    """Returns allocate(tensor) for tensors with the shape and strides of `like`. The new tensor is contiguous."""
    shape, strides = tuple(like.shape), contiguous_strides(like.shape)
    one_device = context.backend is not None and context.backend.device_count() == 1
    make = private.allocator(context.device) if one_device else None
    if make is not None:
        return lambda _: make(shape, strides, dtype)
    if like.stride() == strides and like.dtype is dtype:
        return torch.empty_like
    return functools.partial(torch.empty_like, dtype=dtype, memory_format=torch.contiguous_format)


def _contiguous_like(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns a contiguous meta tensor with the shape of `like`. It represents a newly allocated tensor."""
    return torch.empty_like(like, dtype=dtype, device="meta", memory_format=torch.contiguous_format)


def _has_memory(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor has elements in memory and is not 0-d. torch computes 0-d tensors faster."""
    return tensor.data_ptr() != 0 and tensor.numel() > 0 and tensor.dim() > 0


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
            f"{reason}, and fallback is 'error' ({context.settings.sources['fallback']}): set the setting fallback to "
            f"'torch', or the setting device to one of the backends {known} "
            "(`tridal doctor` says which are available)"
        )
    _log_fallback(reason)
    return False


def _unsupported(context: DeviceContext, dtypes: set[torch.dtype]) -> str | None:
    """Returns why no kernel computes these dtypes on the context's device; None if a kernel does."""
    if context.backend is None:
        return f"no available backend serves {context.device.type} tensors"
    missing = sorted({dtype_name(dtype) for dtype in dtypes} - context.backend.dtypes)
    return f"backend {context.backend.name!r} does not compute {', '.join(missing)}" if missing else None


def why_torch(
    context: DeviceContext, dtype: torch.dtype | None, *tensors: torch.Tensor, otherwise: str | None = None
) -> str:
    """Returns why torch computes a call with this result dtype, for which `forward` or `backward` returned None.

    `otherwise` is the reason if a backend computes the dtypes and the tensors have memory.
    """
    dtypes = {dtype or tensors[0].dtype, *(tensor.dtype for tensor in tensors if tensor.is_floating_point())}
    if (reason := _unsupported(context, dtypes)) is not None:
        return reason
    if not all(map(_has_memory, tensors)):
        return "the tensor has no elements, no memory or no dims"
    return otherwise or "no kernel supports the strides, the scale or the mask"


@functools.cache
def _log_fallback(reason: str) -> None:
    log.warning("%s: torch computes them", reason)
