"""Call guards: a call guard decides whether a call can use the prepared call of an earlier one.

It uses `TensorGuards`, the guards of torch.compile. They compare shape, strides, dtype, device, requires_grad, and the
dispatch keys of the tensor and the thread. The dispatch keys cover autocast and tracers. Separate checks of these take
several times as long.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from tridal.devices.settings import current
from tridal.devices.types import ALIGNMENT
from tridal.pytorch.torch.private import (
    dispatch_modes,
    forward_ad_level,
    function_modes,
    is_batched_gradient,
    tensor_guards,
    transforms_active,
)
from tridal.runtime.specialization import ADDRESS_BITS

CallGuard: TypeAlias = Callable[..., object]
_grad_enabled = torch.is_grad_enabled
_FIXED_STRIDES = 2
"""The strides of a contiguous tensor depend on its rows if at least so many dims are before the dims of a row."""


class ServedRows(NamedTuple):
    """The rows of the calls that a prepared call computes."""

    first: int
    last: int
    """The first and the last number of rows."""
    divisible: bool | None
    """Whether the number of rows is a multiple of `ALIGNMENT`; None if it does not matter."""
    dims: int
    """How many dims a row has. These are the last ones."""
    main: int
    """The tensor whose shape is that of all tensors with a number per element."""
    roles: tuple[str, ...]
    """The roles of the tensors, see `tridal.ops.arguments.Role`."""


def guard_call(
    tensors: Sequence[torch.Tensor | None], options: Sequence[Any] | None = None, rows: ServedRows | None = None
) -> CallGuard | None:
    """Returns guard(tensors, options), which is true if what is prepared for a call also computes another one.

    The tensors of the other call are None where these are None, and have the same metadata and alignment where these
    are tensors. The guard is false in transforms, in modes, and if gradients are enabled or not as before.

    With options, these are the same objects, and the settings are the same. A backward has no options, and its thread
    may have other settings. With `rows`, tensors may have other sizes before the dims of a row. They are contiguous, or
    one number that is expanded.

    Returns None if a tensor occurs twice or has no memory, or if this version of torch has no `TensorGuards`.
    """
    present = [tensor for tensor in tensors if tensor is not None]
    if not all(tensor.data_ptr() for tensor in present):
        return None
    known, checks = dict[str, Any](), tuple[str, ...]()
    if rows is None:
        same = tensor_guards(*present)
    else:
        free = [0 if t is None else _free_dims(t, role, rows) for t, role in zip(tensors, rows.roles, strict=True)]
        pairs = [(t, f) for t, f in zip(tensors, free, strict=True) if t is not None]
        sizes = [[*[None] * f, *t.shape[f:]] for t, f in pairs]
        strides: list[list[int | None]] = [[*t.stride()] if f < _FIXED_STRIDES else [None] * t.dim() for t, f in pairs]
        same = tensor_guards(*present, sizes=sizes, strides=strides)
        main = tensors[rows.main]
        assert main is not None
        cols = main.shape[main.dim() - rows.dims :].numel()
        known = {"first": rows.first * cols, "last": rows.last * cols, "group": ALIGNMENT * cols}
        checks = tuple(_row_checks(tensors, free, rows))
    if same is None:
        return None
    for index, tensor in enumerate(tensors):
        if tensor is not None:
            known |= {f"kind_t{index}": type(tensor), f"address_t{index}": tensor.data_ptr() & ADDRESS_BITS}
    known |= {f"known_o{index}": option for index, option in enumerate(options or ())}
    known |= {"same": same, "settings": current(), "recording": _grad_enabled()}
    present_or_not = tuple(tensor is not None for tensor in tensors)
    make = _guard_maker(present_or_not, -1 if options is None else len(options), checks)
    return make(**known)


def _free_dims(tensor: torch.Tensor, role: str, rows: ServedRows) -> int:
    """Returns how many dims of a tensor, from the first, are those of rows."""
    return {"element": tensor.dim() - rows.dims, "row": tensor.dim(), "index": tensor.dim()}.get(role, 0)


def _row_checks(tensors: Sequence[torch.Tensor | None], free: Sequence[int], rows: ServedRows) -> Iterator[str]:
    """Yields the checks of shapes and strides that `TensorGuards` does not make."""
    main = f"t{rows.main}"
    yield f"first <= {main}.numel() <= last"
    if rows.divisible is not None:
        yield f"{main}.numel() % group {'==' if rows.divisible else '!='} 0"
    for index, (tensor, number) in enumerate(zip(tensors, free, strict=True)):
        if tensor is None or not number:
            continue
        if number >= _FIXED_STRIDES:
            yield f"t{index}.is_contiguous()" if tensor.is_contiguous() else f"not any(t{index}.stride())"
        if index != rows.main:
            yield f"t{index}.shape == {main}.shape{'' if rows.roles[index] == 'element' else f'[:-{rows.dims}]'}"


@functools.cache
def _guard_maker(present: tuple[bool, ...], options: int, row_checks: tuple[str, ...]) -> Callable[..., CallGuard]:
    """Returns make(same, settings, recording, **known), which returns a guard.

    `known` has the type and the bits of the address of each tensor, the options, and the names in `row_checks`.
    `options` is their number, or -1 for a guard without options. The source of the guard is generated, because a loop
    over the tensors takes twice the time.
    """
    tensors, given_options = [f"t{i}" for i in range(len(present))], [f"o{i}" for i in range(options)]
    given = [name for name, is_present in zip(tensors, present, strict=True) if is_present]
    checks = [f"{name} is known_{name}" for name in given_options]
    checks += [f"{name} is None" for name in tensors if name not in given]
    checks += [f"type({name}) is kind_{name}" for name in given]
    checks += ["current() is settings"] * (options >= 0) + ["enabled() is recording"]
    checks += ["not function_modes()", "not transforms_active()", "not dispatch_modes()"]
    for name in given:  # `same` crashes on nested tensors, and on other layouts, whose `data_ptr` is an error
        checks += [f"not batched({name})"] * (options < 0)  # only gradients are batched
        checks += [f"not {name}.is_nested", f"(start := {name}.data_ptr())"]  # 0 if the tensor has no memory
        checks += [f"start & {ADDRESS_BITS} == address_{name}"]
    checks += [f"same({', '.join(given)})", *row_checks]
    known = [f"{what}_{name}" for name in given for what in ("kind", "address")]
    known += [f"known_{name}" for name in given_options] + ["first", "last", "group"] * bool(row_checks)
    unpack = f"{', '.join(given_options)}, = options" if given_options else ""
    source = f"""
def make(same, settings, recording, {", ".join(known)}):
    def guard(tensors, options=()):
        {", ".join(tensors)}, = tensors
        {unpack}
        try:
            return {" and ".join(checks)} and level() < 0
        except RuntimeError:
            return False
    return guard
"""
    scope: dict[str, Any] = {
        "function_modes": function_modes, "transforms_active": transforms_active, "dispatch_modes": dispatch_modes,
        "enabled": _grad_enabled, "batched": is_batched_gradient, "level": forward_ad_level, "current": current,
    }  # fmt: skip
    exec(source, scope)
    return scope["make"]  # type: ignore[no-any-return]
