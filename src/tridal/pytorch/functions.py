"""The public functions of the ops. They follow torch's definitions. `apply` computes every op in one of three ways:

call -> call guard -> prepared call -> kernel     plain tensors
     -> registered op                             tensor subclasses, transforms, modes, tracers
     -> torch                                     devices and dtypes that no backend computes
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from numbers import Real
from typing import Any, Literal

import torch
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_unary

from tridal.devices import registry
from tridal.errors import StreamError
from tridal.ops.log_softmax import LOG_SOFTMAX
from tridal.ops.row_op import RowOp
from tridal.ops.scale_mask import ScoreModification, check_scale_mask
from tridal.ops.softmax import SOFTMAX
from tridal.pytorch import prepared
from tridal.pytorch.autograd import prepared_node
from tridal.pytorch.call_guards import CallGuard, make_call_guard
from tridal.pytorch.call_records import RECORDERS, record_torch
from tridal.pytorch.device_context import DeviceContext, PreparedCall, RowRun, device_context
from tridal.pytorch.distributed import is_distributed
from tridal.pytorch.op_call import OpCall
from tridal.pytorch.private import forward_ad_level, function_modes, needs_dispatcher, skip_frames
from tridal.pytorch.reference import compute_call
from tridal.pytorch.registered_ops import register
from tridal.pytorch.validation import check


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
        dim: the dim that sums to one. A negative dim counts from the last.
        dtype: the input is cast to it before the operation. Required for integer and bool input.
        scale: the input is multiplied by it first.
        mask: is broadcast to the input. A floating-point mask is added; elements where a boolean mask is False are
            excluded.
        causal: row i of the last two dims sees columns 0 to i only, as in scaled_dot_product_attention.
        masked_rows: the result of a row in which every element is -inf: "nan", as torch, or "zero".
        stream: a stream of the input's device, as torch's stream object or as a raw handle. The caller orders it after
            the work that produced the input, as for any torch op. Default: the device's current stream.

    Returns:
        A contiguous tensor of the input's shape, in `dtype` or the input's dtype; under autocast in float32, where
        torch.softmax is. Sums are float32 (float64 for float64). Rows that hold NaN or +inf, or -inf only, give NaN.

    Raises:
        DTypeError, DimensionError, LayoutError, StreamError: the argument of that name is wrong.
        NoBackendError: no backend serves the tensor and the setting `fallback` is "error".
    """
    if scale is None and mask is None and not causal and masked_rows == "nan":
        return apply(SOFTMAX, input, dim, dtype, stream)
    scale = 1.0 if scale is None else scale
    if not _compiling() and has_torch_function((input, mask)):
        given = {"scale": scale, "mask": mask, "causal": causal, "masked_rows": masked_rows, "stream": stream}
        return handle_torch_function(softmax, (input, mask), input, dim, dtype, **given)
    if (type(input) is not torch.Tensor or type(dim) is not int) and not getattr(input, "is_nested", False):
        check(input, dim, dtype)
    check_scale_mask(input, dim, scale, mask, causal, masked_rows)
    scale = scale if scale == scale else math.nan  # cache keys compare NaN by identity
    return apply(SOFTMAX, input, dim, dtype, stream, (), ScoreModification(scale, mask, causal, masked_rows == "zero"))


def log_softmax(
    input: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None, *, stream: Any = None
) -> torch.Tensor:
    """log(softmax(input)) along `dim`, without the intermediate softmax. The arguments are those of `softmax`."""
    return apply(LOG_SOFTMAX, input, dim, dtype, stream)


def row_function(op: RowOp) -> Callable[..., torch.Tensor]:
    """Returns the function of an op: `f(input, dim=-1, dtype=None, *, stream=None, **parameters)`.

    `input`, `dim`, `dtype` and `stream` are those of `softmax`. Registers the op in `torch.ops.tridal`, with its
    gradient.

    Raises:
        PluginError: the declaration of the op is invalid, or another op has its name.
    """
    register(op)

    def function(
        input: torch.Tensor,
        dim: int = -1,
        dtype: torch.dtype | None = None,
        *,
        stream: Any = None,
        **parameters: float,
    ) -> torch.Tensor:
        if unknown := [name for name in parameters if name not in op.parameters]:
            raise TypeError(f"{op.name}() got an unexpected keyword argument {unknown[0]!r}")
        for name, value in parameters.items():
            if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymFloat, torch.SymInt, Real)):
                raise TypeError(f"{op.name}: {name} must be a number, got {value!r}")
        values = tuple(float(parameters.get(name, default)) for name, default in op.parameters.items())
        values = tuple(value if value == value else math.nan for value in values)  # cache keys compare NaN by identity
        return apply(op, input, dim, dtype, stream, values)

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.reference.__doc__
    FUNCTIONS.setdefault(op.name, function)
    return FUNCTIONS[op.name]


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {"softmax": softmax, "log_softmax": log_softmax}
"""The public functions by op name. `row_function` adds to them."""

_compiling = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled

_guarded: dict[RowOp, tuple[CallGuard, tuple[float, ...], RowRun]] = {}
_latest: dict[RowOp, PreparedCall] = {}
registry.on_change(_guarded.clear)
registry.on_change(_latest.clear)


@functools.partial(skip_frames, inlined=True)
def apply(
    op: RowOp,
    input: torch.Tensor,
    dim: int,
    dtype: torch.dtype | None,
    stream: Any,
    parameters: tuple[float, ...] = (),
    modification: ScoreModification | None = None,
) -> torch.Tensor:
    """Computes an op. The most frequent calls do not construct an `OpCall`, because its construction takes time."""
    if _compiling():
        return _compiled(op, input, dim, dtype, stream, parameters, modification)
    if modification is None and stream is None:
        guarded = _guarded.get(op)
        if guarded is not None and guarded[1] == parameters and guarded[0](input, dim, dtype):
            return guarded[2](input)
    mask = None if modification is None else modification.mask
    kind = type(input)
    plain = (kind is torch.Tensor or kind is torch.nn.Parameter) and stream is None and type(dim) is int
    if not plain or (mask is not None and (type(mask) is not torch.Tensor or mask.requires_grad)):
        return _general(OpCall(op, dim, dtype, parameters, modification), input, stream)
    try:
        context = device_context(input.device)
        if context.torch_computes and modification is None and op.torch_function is not None:
            if RECORDERS:
                record_torch(op.name, input, prepared.why_torch(context, dtype, input))
            return op.torch_function(input, dim, dtype=dtype)
        if context.torch_computes or needs_dispatcher() or function_modes():
            return _general(OpCall(op, dim, dtype, parameters, modification), input, stream)
        wanted = autocast_dtype(input) if dtype is None and _autocast_active(op, context) else dtype
        prepared_call = prepared.forward(context, input, op, dim, wanted, parameters, modification)
        if prepared_call is None:
            return _general(OpCall(op, dim, wanted, parameters, modification), input, stream)
        recorded = input.requires_grad and _grad_enabled() and not torch.is_inference_mode_enabled()
        run = prepared_node(prepared_call) if recorded else prepared_call.run
        if modification is None:
            if _latest.get(op) is prepared_call:  # two equal calls in succession: a third is likely
                guard = make_call_guard(input, dim, dtype)
                if guard is not None and device_context(input.device) is prepared_call.context:
                    _guarded[op] = guard, parameters, run
            _latest[op] = prepared_call
        return run(input) if mask is None else run(input, mask)
    except (IndexError, NotImplementedError, RuntimeError, TypeError):
        if input.is_nested and stream is None:
            if RECORDERS:
                record_torch(op.name, input, "the tensor is nested")
            return compute_call(OpCall(op, dim, dtype, parameters, modification), input)
        check(input, dim, dtype, op.name)  # if an argument is invalid, this error is clearer than torch's
        raise


def _general(call: OpCall, input: torch.Tensor, stream: Any) -> torch.Tensor:
    """Computes the less frequent calls: subclasses, transforms, modes, tracers, streams and invalid arguments."""
    op, dim, dtype, parameters, modification = call
    if has_torch_function_unary(input):
        given = dict(zip(op.parameters, parameters, strict=True))
        return handle_torch_function(FUNCTIONS[op.name], (input,), input, dim, dtype, stream=stream, **given)
    if isinstance(input, torch.Tensor) and input.is_nested and stream is None:
        if RECORDERS:
            record_torch(op.name, input, "the tensor is nested")
        return compute_call(call, input)
    check(input, dim, dtype, op.name)
    call = call if type(dim) is int else call._replace(dim=operator.index(dim))
    context = device_context(input.device)
    if stream is not None:
        if context.torch_computes:
            kind = input.device.type
            raise StreamError(f"stream={stream!r}, but {kind} tensors are served by torch and have no stream")
        with _on_stream(stream, input, call.mask):
            return apply(op, input, call.dim, dtype, None, parameters, modification)
    if not is_distributed(input, call.mask):
        if context.torch_computes:
            if RECORDERS:
                record_torch(op.name, input, prepared.why_torch(context, dtype, input))
            return compute_call(call, input)
        if context.backend is None:
            prepared.backend_computes(context, set())  # raises NoBackendError
    if dtype is None and not context.torch_computes and _autocast_active(op, context):
        call = call._replace(dtype=autocast_dtype(input))
    try:
        return call.dispatch(input)
    except TypeError:
        if type(input).__torch_dispatch__ is torch.Tensor.__torch_dispatch__ or is_distributed(input):
            raise
        if RECORDERS:
            record_torch(op.name, input, f"{type(input).__name__} rejects tridal's op")
        return compute_call(call, input)  # a subclass such as MaskedTensor, which rejects the registered op


def _compiled(
    op: RowOp,
    input: torch.Tensor,
    dim: int,
    dtype: torch.dtype | None,
    stream: Any,
    parameters: tuple[float, ...],
    modification: ScoreModification | None,
) -> torch.Tensor:
    """Computes a call in torch.compile and torch.export: as a registered op, or by torch if no backend serves it.

    dynamo traces this function. The dynamo of torch 2.7 traces neither properties nor `_replace` of a named tuple.
    """
    from tridal.pytorch import dynamo

    if stream is not None:
        raise StreamError("stream= has no meaning in a compiled function, which runs on the current stream")
    if not input.is_nested and (modification is not None or type(dim) is not int):
        check(input, dim, dtype, op.name)
        dim = operator.index(dim)
    kind = input.device.type
    mask = None if modification is None else modification.mask
    distributed = is_distributed(input, mask)
    # The registered op cannot see the level of forward-mode AD that a compiled function entered.
    by_torch = input.is_nested or forward_ad_level() >= 0 or (not dynamo.is_served(kind) and not distributed)
    if not by_torch and dtype is None and op.autocast and dynamo.has_autocast(kind) and torch.is_autocast_enabled(kind):
        dtype = autocast_dtype(input)
    call = OpCall(op, dim, dtype, parameters, modification)
    return compute_call(call, input) if by_torch else call.dispatch(input)


def _autocast_active(op: RowOp, context: DeviceContext) -> bool:
    return op.autocast and context.has_autocast and torch.is_autocast_enabled(context.device.type)


def autocast_dtype(input: torch.Tensor) -> torch.dtype | None:
    """Returns the dtype to which autocast casts the input: float32, or None for float64, integer and bool input."""
    return torch.float32 if input.is_floating_point() and input.dtype is not torch.float64 else None


def _on_stream(stream: Any, input: torch.Tensor, mask: torch.Tensor | None) -> AbstractContextManager[Any]:
    """Returns a context in which a stream is current on the input's device. Outputs, kernels and gradients use it."""
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
    for tensor in (input, mask):
        if tensor is not None and tensor.device == device:
            tensor.record_stream(stream)
    return module.stream(stream)  # type: ignore[no-any-return]
