"""Prepared calls: from plain tensors to kernels, decided once and kept.

The decision for a call depends on its device, op, shapes, strides, dtypes and alignment. It is kept as a function, so
the next call like it is a dictionary lookup, an allocation and a launch. This module knows no autograd and no subclass.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from tridal.devices import registry
from tridal.errors import NoBackendError
from tridal.ops.row_op import RowOp
from tridal.ops.scale_mask import ScoreModification
from tridal.pytorch import private
from tridal.pytorch.binding import bind, dtype_name, scale_mask_of
from tridal.pytorch.device_context import Backward, DeviceContext, Forward, PreparedCall, log
from tridal.pytorch.validation import check
from tridal.runtime.row_layout import contiguous_strides
from tridal.runtime.specialization import ADDRESS_BITS

_CAPACITY = 4096


def forward(
    context: DeviceContext,
    op: RowOp,
    input: torch.Tensor,
    dim: int,
    dtype: torch.dtype | None,
    parameters: tuple[float, ...] = (),
    modification: ScoreModification | None = None,
) -> PreparedCall | None:
    """The prepared call for a tensor of the context's device; None if torch has to compute it.

    Raises:
        TypeError, DTypeError, DimensionError, LayoutError: as `tridal.softmax`.
        NoBackendError: torch would have to compute it, and the setting `fallback` is "error".
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
        run = _prepare_forward(context, op, input, dim, dtype, parameters, modification)
        scale = 1.0 if modification is None else modification.scale
        values = op.backward_parameters(parameters, scale)
        call = None if run is None else PreparedCall(run, context, op, dim, input.dtype, values)
        _keep(context.forwards, key, call)
        return call


def _description(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What decides how a mask is read."""
    address = tensor.data_ptr()
    alignment = address & ADDRESS_BITS if address else None
    return tensor.shape, tensor.stride(), tensor.dtype, alignment, tensor.is_neg(), tensor.device


def backward(
    context: DeviceContext,
    op: RowOp,
    grad: torch.Tensor,
    saved: torch.Tensor,
    dim: int,
    dtype: torch.dtype,
    parameters: tuple[float | None, ...],
) -> Backward | None:
    """The prepared call for dY and the saved tensor of an op; None if torch has to compute it.

    Both tensors have one shape. `dtype` is that of the gradient; `parameters` are those of the backward kernel.
    """
    address, saved_address = grad.data_ptr(), saved.data_ptr()
    alignment = (address & ADDRESS_BITS, saved_address & ADDRESS_BITS) if address and saved_address else None
    key = (
        op, dim, dtype, grad.shape, grad.stride(), grad.dtype, alignment, grad.is_neg(),
        saved.dtype, saved.is_contiguous(), saved.is_neg(), parameters,
    )  # fmt: skip
    try:
        return context.backwards[key]
    except KeyError:
        run = _prepare_backward(context, op, grad, saved, dim, dtype, parameters)
        _keep(context.backwards, key, run)
        return run


def _keep(prepared: dict[tuple[Any, ...], Any], key: tuple[Any, ...], value: Any) -> None:
    if len(prepared) >= _CAPACITY:
        prepared.clear()
    prepared[key] = value


def _prepare_forward(
    context: DeviceContext,
    op: RowOp,
    input: torch.Tensor,
    dim: int,
    dtype: torch.dtype | None,
    parameters: tuple[float, ...],
    modification: ScoreModification | None,
) -> Forward | None:
    check(input, dim, dtype, op.name)
    wanted = dtype or input.dtype
    mask = None if modification is None else modification.mask
    read = {wanted, input.dtype} if input.is_floating_point() else {wanted}
    read |= set() if mask is None or mask.dtype is torch.bool else {mask.dtype}
    if not backend_computes(context, read) or not _has_memory(input):
        return None
    dim %= input.dim()
    if modification is not None and not _kernel_modifies(context, input, dim, modification):
        return None
    bound = functools.partial(bind, context, op.forward, dim, parameters=parameters, modification=modification)
    run = None
    if torch.promote_types(input.dtype, wanted) == wanted and input.is_floating_point() and not input.is_neg():
        # To compute in the accumulator of `wanted` is then the same as to cast to `wanted` first.
        run = bound(input, wanted)
    allocate = _allocator(context, input, wanted)
    readable = run is not None
    launch_on = run or bound(_contiguous_like(input, wanted), wanted)
    assert launch_on is not None, "every contiguous tensor can be read"

    def direct(input: torch.Tensor) -> torch.Tensor:
        out = allocate(input)
        launch_on(out, input)
        return out

    def copied(input: torch.Tensor) -> torch.Tensor:
        out = allocate(input)
        out.copy_(input)  # the kernel then works in place, so only the result is allocated
        launch_on(out, out)
        return out

    def masked(input: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        out = allocate(input)
        scores = input if readable else out.copy_(input)
        launch_on(out, scores, mask.view(torch.uint8) if mask.dtype is torch.bool else mask)
        return out

    return masked if mask is not None else direct if readable else copied


def _kernel_modifies(context: DeviceContext, input: torch.Tensor, dim: int, modification: ScoreModification) -> bool:
    """Whether a kernel of the backend scales and masks scores when it loads them."""
    mask = modification.mask
    if mask is not None and (mask.device != input.device or mask.is_neg() or not mask.data_ptr()):
        return False
    assert context.backend is not None
    return "scale_mask" in context.backend.schedules and scale_mask_of(input, dim, modification) is not None


def _prepare_backward(
    context: DeviceContext,
    op: RowOp,
    grad: torch.Tensor,
    saved: torch.Tensor,
    dim: int,
    dtype: torch.dtype,
    parameters: tuple[float | None, ...],
) -> Backward | None:
    if not backend_computes(context, {grad.dtype, saved.dtype, dtype}):
        return None
    if not (_has_memory(grad) and _has_memory(saved)):
        return None
    dim %= grad.dim()
    # torch narrows float64 results: Triton's interpreter stores wrong values when it casts them to bfloat16.
    written = torch.float64 if saved.dtype is torch.float64 else dtype
    allocate = _allocator(context, saved, written)
    plain = saved.is_contiguous() and not saved.is_neg()
    read = saved if plain else _contiguous_like(saved, saved.dtype)
    bound = functools.partial(bind, context, op.backward, dim, saved=read, parameters=parameters)
    direct = None if grad.is_neg() else bound(grad, written)
    launch_on = direct or bound(_contiguous_like(grad, grad.dtype), written)
    assert launch_on is not None, "every contiguous tensor can be read"
    readable, reuses_out, narrowed = direct is not None, grad.dtype == written, written != dtype

    def run(grad: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
        if not plain:
            saved = saved.resolve_neg().contiguous()
        out = allocate(saved)
        if not readable:
            grad = out.copy_(grad) if reuses_out else grad.resolve_neg().contiguous()
        launch_on(out, grad, saved)
        return out.to(dtype) if narrowed else out

    return run


def _allocator(context: DeviceContext, like: torch.Tensor, dtype: torch.dtype) -> Forward:
    """A function that allocates a contiguous tensor of a tensor's shape, given one like it."""
    shape, strides = tuple(like.shape), contiguous_strides(like.shape)
    one_device = context.backend is not None and context.backend.device_count() == 1
    make = private.allocator(context.device) if one_device else None
    if make is not None:
        return lambda _: make(shape, strides, dtype)
    if like.stride() == strides and like.dtype is dtype:
        return torch.empty_like
    return functools.partial(torch.empty_like, dtype=dtype, memory_format=torch.contiguous_format)


def _contiguous_like(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor without memory that stands for a contiguous one of that shape, fresh from the allocator."""
    return torch.empty_like(like, dtype=dtype, device="meta", memory_format=torch.contiguous_format)


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether there are elements to read. torch computes tensors without dims faster than a launch."""
    return tensor.data_ptr() != 0 and tensor.numel() > 0 and tensor.dim() > 0


def backend_computes(context: DeviceContext, dtypes: set[torch.dtype]) -> bool:
    """Whether kernels compute these dtypes on the context's device. If not, the reason is logged once, or raised.

    Raises:
        NoBackendError: they do not, and the setting `fallback` is "error".
    """
    backend, kind = context.backend, context.device.type
    missing = [] if backend is None else sorted({dtype_name(dtype) for dtype in dtypes} - backend.dtypes)
    if backend is not None and not missing:
        return True
    if backend is None:
        reason = f"no available backend serves {kind} tensors"
    else:
        reason = f"backend {backend.name!r} does not compute {', '.join(missing)}"
    if context.settings.fallback == "error":
        known = ", ".join(sorted(entry.name for entry in registry.registered()))
        raise NoBackendError(
            f"{reason}, and fallback is 'error'; set fallback='torch' or use one of the backends {known} "
            "(`tridal doctor` says which are available)"
        )
    _log_fallback(reason)
    return False


@functools.cache
def _log_fallback(reason: str) -> None:
    log.warning("%s: torch computes them", reason)
