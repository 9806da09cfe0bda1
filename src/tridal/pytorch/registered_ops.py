"""The registered ops, `torch.ops.tridal.*`: opaque to compilers, visible to modes, subclasses and transforms.

`register` derives two registered ops from a `RowOp`: the op and its gradient. Each has one kernel for all devices, a
fake kernel, an autograd rule and a vmap rule. The kernel selects the backend at run time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from tridal.errors import PluginError
from tridal.ops import table
from tridal.ops.row_op import RowOp
from tridal.pytorch import prepared, private, reference
from tridal.pytorch.autograd import ForwardNode
from tridal.pytorch.call_records import RECORDERS, record_torch
from tridal.pytorch.device_context import device_context
from tridal.pytorch.op_call import GradientCall, OpCall, defaults, overload
from tridal.pytorch.validation import check_call

TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
LIBRARY: Any = torch.library.Library("tridal", "DEF")  # type: ignore[no-untyped-call]
REGISTERED: dict[str, RowOp] = {}
ON_REGISTER: list[Callable[[RowOp], None]] = []
"""Functions that `register` calls with each new op."""


def register(op: RowOp) -> None:
    """Registers an op and its gradient. Does nothing if the op is already registered.

    Raises:
        PluginError: the op is invalid (see `tridal.ops.table.check`), or another op has its name.
    """
    if REGISTERED.get(op.name) is op:
        return
    table.check(op)
    if op.name in REGISTERED:
        raise PluginError(f"op {op.name!r} cannot be used: another op with that name is registered")
    for kernel in op.kernels:
        if hasattr(torch.ops.tridal, kernel.name):  # an alias, or an attribute that torch adds
            raise PluginError(f"op {op.name!r} cannot be used: torch.ops.tridal.{kernel.name} already exists")
    compute_call = functools.partial(reference.compute_call, dispatch=True)
    _define(OpCall, op, ("input",), _forward, compute_call)
    _define(GradientCall, op, ("grad", op.saves), _backward, reference.gradient)
    REGISTERED[op.name] = op
    for function in ON_REGISTER:
        function(op)


def _forward(call: OpCall, input: torch.Tensor) -> torch.Tensor:
    """Computes an op with a kernel, or with torch if no kernel supports the call."""
    context = device_context(input.device)
    found = prepared.forward(context, input, *call)
    if found is None:
        if RECORDERS:
            record_torch(call.kernel.name, input, prepared.why_torch(context, call.dtype, input))
        return reference.compute_call(call, input, dispatch=True).contiguous()
    return found.run(input) if call.mask is None else found.run(input, call.mask)


def _backward(call: OpCall, grad: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
    """Computes the gradient with a kernel, or with torch if no kernel supports the call."""
    if grad.shape != saved.shape or grad.device != saved.device:
        check_call(call, grad, saved)  # raises an error
    context = device_context(grad.device)
    run = prepared.backward(context, call, grad, saved)
    if run is None and RECORDERS:
        record_torch(call.kernel.name, grad, prepared.why_torch(context, call.dtype, grad, saved))
    return reference.gradient(call, grad, saved).contiguous() if run is None else run(grad, saved)


def _define(
    kind: type[OpCall],
    op: RowOp,
    tensor_names: tuple[str, ...],
    run: Callable[..., torch.Tensor],
    by_torch: Callable[..., torch.Tensor],
) -> None:
    """Registers an op or its gradient. run(call, *tensors) computes it. by_torch(call, *tensors) is differentiable."""
    kernel = op.forward if kind is OpCall else op.backward
    name, count = kernel.name, len(tensor_names)
    values = zip(kernel.parameters, defaults(op, kind is GradientCall), strict=True)
    numbers = [f"float {parameter}={default!r}" for parameter, default in values]
    schema = [*(f"Tensor {tensor}" for tensor in tensor_names), "int dim", "ScalarType dtype", *numbers]
    if kernel.scale_mask:
        schema += ["Tensor? mask=None", "float scale=1.", "bool causal=False", "bool zero_masked_rows=False"]

    def split(arguments: tuple[Any, ...]) -> tuple[OpCall, tuple[torch.Tensor, ...]]:
        return kind.of(op, *arguments[count:]), arguments[:count]

    @private.skip_frames
    def compute(*arguments: Any) -> torch.Tensor:
        return run(kind.of(op, *arguments[count:]), *arguments[:count])

    @private.skip_frames
    def fake(*arguments: Any) -> torch.Tensor:
        call, tensors = split(arguments)
        check_call(call, *tensors)
        return tensors[-1].new_empty(tensors[-1].shape, dtype=call.dtype)

    @private.skip_frames
    def autograd(*arguments: Any) -> torch.Tensor:
        call, tensors = split(arguments)
        read = tensors if call.modification is None or call.mask is None else (*tensors, call.mask)
        differentiated = [tensor for tensor in read if tensor.requires_grad] if torch.is_grad_enabled() else []
        # `read` has one or two tensors, so this checks the types of all.
        if not differentiated and type(read[0]) is type(read[-1]) is torch.Tensor and not private.needs_dispatcher():
            return run(call, *tensors)
        # `ForwardNode` differentiates only the input. For a gradient or a mask, autograd differentiates `by_torch`.
        has_node = not differentiated or (kind is OpCall and differentiated[-1] is tensors[0])
        if not has_node or not private.HAS_NODES or has_tangent(*read):
            check_call(call, *tensors)
            if RECORDERS:
                record_torch(name, tensors[0], "higher-order, forward-mode and mask derivatives use torch's ops")
            return by_torch(call, *tensors)
        if differentiated:
            return private.apply_node(ForwardNode, *tensors, call)  # type: ignore[no-any-return]
        with private.below_autograd():
            return overload(name)(*arguments)  # type: ignore[no-any-return]

    @private.skip_frames
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[torch.Tensor, int]:
        mapped = list(zip(arguments, in_dims, strict=True))
        example, tensors = split(tuple(value if axis is None else _without_axis(value, axis) for value, axis in mapped))
        check_call(example, *tensors)
        rank = max(tensors[0].dim(), 1)
        batched = [
            value if axis is None and position >= count else _batch_first(value, axis, info.batch_size, rank)
            for position, (value, axis) in enumerate(mapped)
        ]
        batched[count] = example.dim % rank + 1
        return overload(name)(*batched).reshape(info.batch_size, *tensors[0].shape), 0

    LIBRARY.define(f"{name}({', '.join(schema)}) -> Tensor", tags=TAGS)
    LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    LIBRARY.impl(name, autograd, "Autograd")
    torch.library.register_fake(f"tridal::{name}", fake, lib=LIBRARY)
    torch.library.register_vmap(f"tridal::{name}", vmap, lib=LIBRARY)


def _without_axis(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """Returns a tensor like one example. It is not a slice, because DTensors of torch 2.11 do not support `select`."""
    shape = [size for position, size in enumerate(tensor.shape) if position != axis % tensor.dim()]
    return torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(shape)


def _batch_first(tensor: torch.Tensor, axis: int | None, batch_size: int, rank: int) -> torch.Tensor:
    """Returns the tensor with the batch dim first, followed by `rank` dims. Adds the batch dim if `axis` is None."""
    tensor = tensor.expand(batch_size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
    return tensor.reshape(batch_size, *[1] * (rank + 1 - tensor.dim()), *tensor.shape[1:])


def has_tangent(*tensors: torch.Tensor) -> bool:
    """Returns whether one of the tensors has a tangent of forward-mode AD.

    A check of the forward-mode AD level is not sufficient, because compiled torch.func transforms do not set the level.
    """
    if private.forward_ad_level() < 0 and not private.transforms_active():
        return False
    unpack: Any = forward_ad.unpack_dual
    try:
        return any(unpack(tensor, level=0).tangent is not None for tensor in tensors)
    except NotImplementedError:  # a DTensor of torch 2.7, which cannot have a tangent
        return False


def on_dispatch(op: str, kind: type, rule: Callable[..., Any]) -> None:
    """Registers rule(kind, op, types, args, kwargs) for the tensor subclass `kind`, which has `__torch_dispatch__`."""
    torch.library.register_torch_dispatch(f"tridal::{op}", kind, rule, lib=LIBRARY)


def _masked_softmax(
    input: torch.Tensor, mask: torch.Tensor | None, scale: float, causal: bool, zero_rows: bool, dim: int,
    dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """Computes `masked_softmax`, an op of tridal 0.1. Programs that were exported with tridal 0.1 may contain it."""
    return overload("softmax")(input, dim, dtype, mask, scale, causal, zero_rows)  # type: ignore[no-any-return]


for _op in table.ROW_OPS:
    register(_op)
LIBRARY.define(
    "masked_softmax(Tensor input, Tensor? mask, float scale, bool causal, bool zero_rows, int dim, ScalarType dtype)"
    " -> Tensor",
    tags=TAGS,
)
LIBRARY.impl("masked_softmax", _masked_softmax, "CompositeImplicitAutograd")
