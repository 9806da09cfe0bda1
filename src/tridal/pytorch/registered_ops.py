"""The registered ops, `torch.ops.tridal.*`: opaque to compilers, visible to modes, subclasses and transforms.

`register` derives them from a `RowOp`: the op and its gradient, each with kernels for every device (the backend is
selected at run time), the shape of its result for fake and meta tensors, an autograd rule and a vmap rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from tridal.errors import PluginError
from tridal.ops import table
from tridal.ops.row_op import RowOp
from tridal.ops.scale_mask import ScoreModification, check_scale_mask
from tridal.pytorch import prepared, private, reference
from tridal.pytorch.autograd import ForwardNode, overload
from tridal.pytorch.device_context import device_context
from tridal.pytorch.validation import check

_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
_LIBRARY: Any = torch.library.Library("tridal", "DEF")  # type: ignore[no-untyped-call]
_registered: dict[str, RowOp] = {}

_on_register: list[Callable[[RowOp], None]] = []


def when_registered(rule: Callable[[RowOp], None]) -> None:
    """Calls `rule(op)` for every op that is registered, now or later."""
    _on_register.append(rule)
    for op in tuple(_registered.values()):
        rule(op)


def register(op: RowOp) -> None:
    """Registers an op and its gradient, unless that was done before.

    Raises:
        PluginError: the op cannot be used, see `tridal.ops.table.check`.
    """
    if _registered.get(op.name) is op:
        return
    table.check(op)
    if op.name in _registered:
        raise PluginError(f"op {op.name!r} cannot be used: another op with that name is registered")
    _define_forward(op)
    _define_backward(op)
    _registered[op.name] = op
    for rule in _on_register:
        rule(op)


def modification_of(arguments: tuple[Any, ...]) -> ScoreModification | None:
    """The score modification that a registered op's arguments (mask, scale, causal, zero_masked_rows) give, if any."""
    given = dict(enumerate(arguments))
    mask, scale, causal, zero_masked_rows = given.get(0), given.get(1, 1.0), given.get(2, False), given.get(3, False)
    if mask is None and scale == 1 and not causal and not zero_masked_rows:
        return None
    return ScoreModification(scale, mask, causal, zero_masked_rows)


def compose(
    op: RowOp,
    input: torch.Tensor,
    dim: int,
    dtype: torch.dtype,
    parameters: tuple[float, ...],
    modification: ScoreModification | None,
) -> torch.Tensor:
    """The op where one kernel does not compute all of it: torch's ops modify the scores, and the op follows."""
    if modification is None:
        return reference.compute(op, input, dim, dtype, parameters)
    function = overload(op.name)
    return reference.compute_modified(lambda x: function(x, dim, x.dtype, *parameters), input, dim, dtype, modification)


def _define_forward(op: RowOp) -> None:
    number = len(op.parameters)
    parameters = "".join(f", float {name}={float(default)!r}" for name, default in op.parameters.items())
    extra = ", Tensor? mask=None, float scale=1., bool causal=False, bool zero_masked_rows=False"
    schema = f"{op.name}(Tensor input, int dim, ScalarType dtype{parameters}{extra if op.scale_mask else ''}) -> Tensor"
    defaults = tuple(float(default) for default in op.parameters.values())

    def split(arguments: tuple[Any, ...]) -> tuple[tuple[float, ...], ScoreModification | None]:
        return (*arguments[:number], *defaults[len(arguments) :]), modification_of(arguments[number:])

    def compute(input: torch.Tensor, dim: int, dtype: torch.dtype, *arguments: Any) -> torch.Tensor:
        values, modification = split(arguments)
        call = prepared.forward(device_context(input.device), op, input, dim, dtype, values, modification)
        if call is not None:
            mask = None if modification is None else modification.mask
            return call.run(input) if mask is None else call.run(input, mask)
        if modification is not None:
            zero = "zero" if modification.zero_masked_rows else "nan"
            check_scale_mask(input, dim, modification.scale, modification.mask, modification.causal, zero)
        return compose(op, input, dim, dtype, values, modification).contiguous()

    def fake(input: torch.Tensor, dim: int, dtype: torch.dtype, *arguments: Any) -> torch.Tensor:
        check(input, dim, dtype, op.name)
        _, modification = split(arguments)
        if modification is not None and modification.mask is not None:
            modification.mask.expand(input.shape)
        return input.new_empty(input.shape, dtype=dtype)

    def autograd(input: torch.Tensor, dim: int, dtype: torch.dtype, *arguments: Any) -> torch.Tensor:
        values, modification = split(arguments)
        mask = None if modification is None else modification.mask
        if is_plain(input) and (mask is None or is_plain(mask)):
            return compute(input, dim, dtype, *arguments)
        mask_gradient = mask is not None and mask.requires_grad and torch.is_grad_enabled()
        if mask_gradient or has_tangent(input, mask) or not private.HAS_NODES:
            return compose(op, input, dim, dtype, values, modification)
        if input.requires_grad and torch.is_grad_enabled():
            given = (*values, *arguments[number:])  # the dispatcher omits trailing defaults
            return private.apply_node(ForwardNode, input, op, dim, dtype, *given)  # type: ignore[no-any-return]
        with private.below_autograd():
            return overload(op.name)(input, dim, dtype, *arguments)  # type: ignore[no-any-return]

    def vmap(
        info: Any, in_dims: Any, input: torch.Tensor, dim: int, dtype: torch.dtype, *arguments: Any
    ) -> tuple[torch.Tensor, int]:
        check(input if in_dims[0] is None else input.select(in_dims[0], 0), dim, dtype, op.name)
        input = input.expand(info.batch_size, *input.shape) if in_dims[0] is None else input.movedim(in_dims[0], 0)
        scalar = input.dim() == 1
        input = input.unsqueeze(1) if scalar else input
        given = list(arguments)
        if len(given) > number and given[number] is not None and in_dims[3 + number] is not None:
            mask = given[number].movedim(in_dims[3 + number], 0)
            given[number] = mask.reshape(mask.shape[0], *[1] * (input.dim() - mask.dim()), *mask.shape[1:])
        result = overload(op.name)(input, dim % (input.dim() - 1) + 1, dtype, *given)
        return result.squeeze(1) if scalar else result, 0

    _implement(op.name, schema, compute, fake, autograd, vmap)


def _define_backward(op: RowOp) -> None:
    name, saved_name = op.backward.name, "output" if op.saves == "output" else "input"
    values = {"scale": 1.0, **op.parameters}
    defaults = {parameter: float(values[parameter]) for parameter in op.backward.parameters}
    parameters = "".join(f", float {parameter}={default!r}" for parameter, default in defaults.items())
    schema = f"{name}(Tensor grad, Tensor {saved_name}, int dim, ScalarType dtype{parameters}) -> Tensor"

    def completed(arguments: tuple[float, ...]) -> tuple[float | None, ...]:
        given = dict(zip(defaults, (*arguments, *tuple(defaults.values())[len(arguments) :]), strict=True))
        return tuple(None if key == "scale" and value == 1 else value for key, value in given.items())

    def compute(
        grad: torch.Tensor, saved: torch.Tensor, dim: int, dtype: torch.dtype, *arguments: float
    ) -> torch.Tensor:
        run = prepared.backward(device_context(grad.device), op, grad, saved, dim, dtype, completed(arguments))
        if run is not None:
            return run(grad, saved)
        return reference.gradient(op, grad, saved, dim, dtype, completed(arguments)).contiguous()

    def fake(grad: torch.Tensor, saved: torch.Tensor, dim: int, dtype: torch.dtype, *_: float) -> torch.Tensor:
        check(saved, dim, dtype, op.name)
        return saved.new_empty(saved.shape, dtype=dtype)

    def autograd(
        grad: torch.Tensor, saved: torch.Tensor, dim: int, dtype: torch.dtype, *arguments: float
    ) -> torch.Tensor:
        if is_plain(grad) and is_plain(saved):
            return compute(grad, saved, dim, dtype, *arguments)
        differentiated = torch.is_grad_enabled() and (grad.requires_grad or saved.requires_grad)
        if differentiated or has_tangent(grad, saved) or not private.HAS_NODES:
            return reference.gradient(op, grad, saved, dim, dtype, completed(arguments))
        with private.below_autograd():
            return overload(name)(grad, saved, dim, dtype, *arguments)  # type: ignore[no-any-return]

    def vmap(
        info: Any,
        in_dims: Any,
        grad: torch.Tensor,
        saved: torch.Tensor,
        dim: int,
        dtype: torch.dtype,
        *arguments: float,
    ) -> tuple[torch.Tensor, int]:
        grad, saved = (
            tensor.expand(info.batch_size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
            for tensor, axis in ((grad, in_dims[0]), (saved, in_dims[1]))
        )
        rank = saved.dim() - 1
        if rank == 0:
            result = overload(name)(grad.unsqueeze(1), saved.unsqueeze(1), 1, dtype, *arguments)
            return result.squeeze(1), 0
        return overload(name)(grad, saved, dim % rank + 1, dtype, *arguments), 0

    _implement(name, schema, compute, fake, autograd, vmap)


def _implement(
    name: str,
    schema: str,
    compute: Callable[..., Any],
    fake: Callable[..., Any],
    autograd: Callable[..., Any],
    vmap: Callable[..., Any],
) -> None:
    _LIBRARY.define(schema, tags=_TAGS)
    _LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, autograd, "Autograd")
    torch.library.register_fake(f"tridal::{name}", fake, lib=_LIBRARY)
    torch.library.register_vmap(f"tridal::{name}", vmap, lib=_LIBRARY)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether nothing but memory has to be known of a tensor, as in compiled code: mostly there is no gradient."""
    gradient = tensor.requires_grad and torch.is_grad_enabled()
    return type(tensor) is torch.Tensor and not gradient and not private.needs_dispatcher()


def has_tangent(*tensors: torch.Tensor | None) -> bool:
    """Whether forward-mode AD differentiates with respect to one of the tensors.

    The level of forward-mode AD does not tell: compiled transforms of torch.func do not set it.
    """
    if private.forward_ad_level() < 0 and not private.transforms_active():
        return False
    unpack: Any = forward_ad.unpack_dual
    return any(unpack(t, level=0).tangent is not None for t in tensors if t is not None)


def on_dispatch(op: str, kind: type, rule: Callable[..., Any]) -> None:
    """Registers rule(kind, op, types, args, kwargs) for tensors of a subclass with `__torch_dispatch__`."""
    torch.library.register_torch_dispatch(f"tridal::{op}", kind, rule, lib=_LIBRARY)


def _masked_softmax(
    input: torch.Tensor, mask: torch.Tensor | None, scale: float, causal: bool, zero_rows: bool, dim: int,
    dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """The op of version 0.1 that exported programs may hold."""
    return overload("softmax")(input, dim, dtype, mask, scale, causal, zero_rows)  # type: ignore[no-any-return]


for _op in table.BUILT_IN:
    register(_op)
_LIBRARY.define(
    "masked_softmax(Tensor input, Tensor? mask, float scale, bool causal, bool zero_rows, int dim, ScalarType dtype)"
    " -> Tensor",
    tags=_TAGS,
)
_LIBRARY.impl("masked_softmax", _masked_softmax, "CompositeImplicitAutograd")
