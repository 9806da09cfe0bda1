"""From plain tensors to kernels: who serves a device, and the calls that were prepared for its tensors.

What a call does is decided once for each place, shape, strides, dtype and alignment, and kept as a function; the next
such call is a dictionary lookup, an allocation and a launch. Nothing here knows of autograd or of tensor subclasses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from tridal.devices import registry
from tridal.devices.types import Op
from tridal.errors import NoBackendError
from tridal.ops.scale_mask import Extras, check_extras
from tridal.pytorch.call_guards import GUARDS
from tridal.pytorch.device_context import Backward, Call, Forward, Place, log
from tridal.pytorch.validation import check
from tridal.runtime import batch_invariance as invariance
from tridal.runtime import launch
from tridal.runtime import specialization as variants
from tridal.runtime.row_layout import FEW_ROWS, contiguous_strides, geometry
from tridal.runtime.scale_mask import Weighing, place_mask
from tridal.runtime.workspace import with_words

BACKWARD: dict[Op, Op] = {"softmax": "softmax_backward", "log_softmax": "log_softmax_backward"}

_CAPACITY = 4096


def forward(place: Place, op: Op, input: torch.Tensor, dim: int, dtype: torch.dtype | None) -> Call | None:
    """The prepared call for a tensor that lives at `place`; None if torch has to compute it.

    Raises:
        TypeError, DTypeError, DimensionError, LayoutError: as `tridal.softmax`.
        NoBackendError: torch would have to compute it, and the setting `fallback` is "error".
    """
    address = input.data_ptr()
    alignment = address & variants.ADDRESS_BITS if address else None  # nothing is behind address 0: empty, or unstored
    key = (op, dim, dtype, input.shape, input.stride(), input.dtype, alignment, input.is_neg())
    try:
        return place.forwards[key]
    except KeyError:
        run = _prepare_forward(place, op, input, dim, dtype)
        call = None if run is None else Call(run, place, op, dim, input.dtype)
        _keep(place.forwards, key, call)
        return call


def weighed(place: Place, input: torch.Tensor, dim: int, dtype: torch.dtype | None, extras: Extras) -> Call | None:
    """The prepared softmax of scores that are scaled and masked first; None if no kernel does that in one pass.

    Raises:
        as `forward`, and what is wrong with the extras.
    """
    mask = None if extras.mask is None else (*_described(extras.mask), extras.mask.device)
    key = (dim, dtype, *_described(input), extras.scale, extras.causal, extras.masked_rows, mask)
    try:
        return place.forwards[key]
    except KeyError:
        run = _prepare_forward(place, "softmax", input, dim, dtype, extras)
        call = None if run is None else Call(run, place, "softmax", dim, input.dtype, extras.scale)
        _keep(place.forwards, key, call)
        return call


def _described(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What of a tensor decides how it is read, as in the key of `forward`, which has no time for a function."""
    address = tensor.data_ptr()
    alignment = address & variants.ADDRESS_BITS if address else None
    return tensor.shape, tensor.stride(), tensor.dtype, alignment, tensor.is_neg()


def backward(
    place: Place,
    op: Op,
    grad: torch.Tensor,
    output: torch.Tensor,
    dim: int,
    dtype: torch.dtype,
    scale: float = 1.0,
) -> Backward | None:
    """The prepared call for dY and the saved output Y of `op`, a forward; None if torch has to compute it.

    Both have one shape, `dtype` is that of the gradient wanted, and `scale` what it is multiplied with.
    """
    address, saved = grad.data_ptr(), output.data_ptr()
    alignment = (address & variants.ADDRESS_BITS, saved & variants.ADDRESS_BITS) if address and saved else None
    key = (
        op, dim, dtype, grad.shape, grad.stride(), grad.dtype, alignment, grad.is_neg(),
        output.dtype, output.is_contiguous(), output.is_neg(), scale,
    )  # fmt: skip
    try:
        return place.backwards[key]
    except KeyError:
        run = _prepare_backward(place, op, grad, output, dim, dtype, scale)
        _keep(place.backwards, key, run)
        return run


def _keep(prepared: dict[tuple[Any, ...], Any], key: tuple[Any, ...], value: Any) -> None:
    if len(prepared) >= _CAPACITY:
        prepared.clear()
    prepared[key] = value


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" for torch.float32, and so on."""
    return str(dtype).removeprefix("torch.")


def _prepare_forward(
    place: Place, op: Op, input: torch.Tensor, dim: int, dtype: torch.dtype | None, extras: Extras | None = None
) -> Forward | None:
    check(input, dim, dtype)
    wanted = dtype or input.dtype
    read = {wanted, input.dtype} if input.is_floating_point() else {wanted}
    if extras is not None:
        check_extras(input, dim, extras)
        read |= set() if extras.mask is None or extras.mask.dtype is torch.bool else {extras.mask.dtype}
    if not serves(place, read) or not _stored(input):
        return None
    dim %= input.dim()
    if extras is not None and not _weighs(place, input, dim, extras):
        return None
    run = None
    if torch.promote_types(input.dtype, wanted) == wanted and input.is_floating_point() and not input.is_neg():
        # Computing in the accumulator of `wanted` is then the same as casting to `wanted` first.
        run = _bind(place, op, dim, input, wanted, extras=extras)
    allocate = _allocator(place, input, wanted)
    launch_on = run or _bind(place, op, dim, _unstored(input, wanted), wanted, extras=extras)
    assert launch_on is not None, "every contiguous tensor can be read"
    readable = run is not None

    def direct(input: torch.Tensor) -> torch.Tensor:
        out = allocate(input)
        launch_on(out, input)
        return out

    def copied(input: torch.Tensor) -> torch.Tensor:
        out = allocate(input)
        out.copy_(input)  # the kernel then works in place: nothing of this size is allocated but the result
        launch_on(out, out)
        return out

    def masked(input: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        out = allocate(input)
        scores = input if readable else out.copy_(input)
        launch_on(out, scores, mask.view(torch.uint8) if mask.dtype is torch.bool else mask)
        return out

    if extras is not None and extras.mask is not None:
        return masked
    return direct if readable else copied


def _weighs(place: Place, input: torch.Tensor, dim: int, extras: Extras) -> bool:
    """Whether a kernel at `place` does so in its pass."""
    mask = extras.mask
    if mask is not None and (mask.device != input.device or mask.is_neg() or not mask.data_ptr()):
        return False
    return _fuses(place) and _weighing(input, dim, extras) is not None


def _fuses(place: Place) -> bool:
    return place.backend is not None and "masked" in place.backend.algorithms


def _weighing(scores: torch.Tensor, dim: int, extras: Extras) -> Weighing | None:
    """What the extras are to a kernel that reads these scores; None if none can."""
    mask, factor = extras.mask, None if extras.scale == 1 else float(extras.scale)
    weighing = Weighing(factor, bool(extras.causal), extras.zero)
    if mask is not None:
        name = "uint8" if mask.dtype is torch.bool else dtype_name(mask.dtype)
        weighing = replace(weighing, mask=name, address=mask.data_ptr() & variants.ADDRESS_BITS)
    elif not extras.causal:
        return weighing
    strides = (0,) * scores.dim() if mask is None else mask.expand(scores.shape).stride()
    return place_mask(weighing, scores.shape, scores.stride(), strides, dim)


def _prepare_backward(
    place: Place, op: Op, grad: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype, scale: float
) -> Backward | None:
    if not serves(place, {grad.dtype, output.dtype, dtype}) or not (_stored(grad) and _stored(output)):
        return None
    kernel, dim = BACKWARD[op], dim % grad.dim()
    # Narrowing float64 on its way out is left to torch: Triton's interpreter makes nonsense of a bfloat16 then.
    stored = torch.float64 if output.dtype is torch.float64 else dtype
    allocate = _allocator(place, output, stored)
    plain = output.is_contiguous() and not output.is_neg()
    saved = output if plain else _unstored(output, output.dtype)
    extras = Extras(scale, None, False, "nan") if _fuses(place) else None
    as_it_lies = None if grad.is_neg() else _bind(place, kernel, dim, grad, stored, saved, extras)
    launch_on = as_it_lies or _bind(place, kernel, dim, _unstored(grad, grad.dtype), stored, saved, extras)
    assert launch_on is not None, "every contiguous tensor can be read"
    readable = as_it_lies is not None
    in_place, narrowed, apart = grad.dtype == stored, stored != dtype, scale != 1 and extras is None

    def call(grad: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        if not plain:
            output = output.resolve_neg().contiguous()
        out = allocate(output)
        if not readable:
            grad = out.copy_(grad) if in_place else grad.resolve_neg().contiguous()
        launch_on(out, grad, output)
        if apart:
            out *= scale
        return out.to(dtype) if narrowed else out

    return call


def _allocator(place: Place, like: torch.Tensor, dtype: torch.dtype) -> Forward:
    """Makes contiguous tensors of a tensor's shape, given one like it."""
    shape, strides = tuple(like.shape), contiguous_strides(like.shape)
    make = _maker(place.device) if place.backend is not None and place.backend.device_count() == 1 else None
    if make is not None:
        return lambda _: make(shape, strides, dtype)
    if like.stride() == strides and like.dtype is dtype:
        return torch.empty_like
    return functools.partial(torch.empty_like, dtype=dtype, memory_format=torch.contiguous_format)


@functools.cache
def _maker(device: torch.device) -> Callable[..., torch.Tensor] | None:
    """make(shape, strides, dtype): allocates on the current device as the code of torch.compile does, in half the time.

    Private to torch, and so tried. None if it isn't there, or not for that device.
    """
    make: Any = getattr(GUARDS, f"_empty_strided_{device.type}", None)
    try:
        made = make((2, 3), (3, 1), torch.float32)
    except Exception:
        return None
    as_asked = made.shape == (2, 3) and made.stride() == (3, 1) and made.dtype is torch.float32
    return make if as_asked and made.device == device else None


def _unstored(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What stands for a contiguous tensor of a tensor's shape, fresh from the allocator."""
    return torch.empty_like(like, dtype=dtype, device="meta", memory_format=torch.contiguous_format)


def _stored(tensor: torch.Tensor) -> bool:
    """Whether there are elements to read. Of one without dimensions torch makes less work than a launch would."""
    return tensor.data_ptr() != 0 and tensor.numel() > 0 and tensor.dim() > 0


def serves(place: Place, dtypes: set[torch.dtype]) -> bool:
    """Whether kernels compute these dtypes at `place`; says once for each cause that they don't, or refuses.

    Raises:
        NoBackendError: they don't, and the setting `fallback` is "error".
    """
    backend, kind = place.backend, place.device.type
    missing = [] if backend is None else sorted({dtype_name(dtype) for dtype in dtypes} - backend.dtypes)
    if backend is not None and not missing:
        return True
    if backend is None:
        why = f"no available backend serves {kind} tensors"
    else:
        why = f"backend {backend.name!r} does not compute {', '.join(missing)}"
    if place.settings.fallback == "error":
        known = ", ".join(sorted(entry.name for entry in registry.registered()))
        raise NoBackendError(
            f"{why}, and fallback is 'error'; set fallback='torch' or use one of the backends {known} "
            "(`tridal doctor` says which are available)"
        )
    _say_fallback(why)
    return False


@functools.cache
def _say_fallback(why: str) -> None:
    log.warning("%s: torch computes them", why)


def _bind(
    place: Place,
    op: Op,
    dim: int,
    source: torch.Tensor,
    dtype: torch.dtype,
    saved: torch.Tensor | None = None,
    extras: Extras | None = None,
) -> Callable[..., None] | None:
    """run(out, source[, saved or mask]) on the device's current stream; None if no kernel reads `source` as it lies.

    `out`, fresh from torch's allocator and so aligned, and `saved` are contiguous and have the shape of `source`, which
    holds no dimension of size zero; `source` may be `out` itself. Both stand for tensors like them. 0 <= dim < rank.
    """
    backend, index, invariant = place.backend, place.index, place.settings.batch_invariant
    assert backend is not None
    mask = None if extras is None else extras.mask
    weighing = variants.PLAIN if extras is None else _weighing(source, dim, extras)
    assert weighing is not None, "who asks has made sure that it can be weighed"
    numbered = mask is not None or weighing.causal  # then a block's rows have to follow those of the block before
    where = geometry(source.shape, source.stride(), dim, 0 if invariant or numbered else FEW_ROWS)
    if where is None:
        return None
    dtypes = [dtype, source.dtype] if saved is None else [dtype, source.dtype, saved.dtype]
    read = [source] if saved is None else [source, saved]
    addresses = [0, *(tensor.data_ptr() & variants.ADDRESS_BITS for tensor in read)]
    kind = variants.Call
    if invariant:
        # How a tensor lies is not to matter either, so what does not lie plainly is copied first.
        if not source.is_contiguous() or addresses[1]:
            return None
        backend, kind = invariance.invariant(backend), invariance.InvariantCall
    call = kind.of(op, where, tuple(map(dtype_name, dtypes)), tuple(addresses), weighing)
    with backend.guard(index):
        launch_plan, bound, words = launch.prepare(
            call, backend, backend.properties(index), registry.options(backend, place.settings)
        )
    log.debug("%s on %s:%d: %s", call.problem, backend.name, index, launch_plan)
    if words:
        bound = with_words(bound, words, place.device)
    stream, guard = backend.stream, backend.guard

    def of_two(out: torch.Tensor, source: torch.Tensor) -> None:
        bound(stream(index), out, source)

    def of_three(out: torch.Tensor, source: torch.Tensor, other: torch.Tensor) -> None:
        bound(stream(index), out, source, other)

    def guarded(*tensors: torch.Tensor) -> None:
        with guard(index):
            bound(stream(index), *tensors)

    if backend.device_count() > 1:
        return guarded
    return of_two if saved is None and mask is None else of_three
