"""Call guards: a call guard decides whether a call can reuse the prepared call of an earlier one.

It uses `TensorGuards`, the guards of torch.compile. They compare shape, strides, dtype, device, requires_grad, and the
dispatch keys of the tensor and the thread. The dispatch keys cover autocast and tracers. Separate checks of these take
several times as long.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from tridal.devices.settings import current
from tridal.pytorch.private import (
    dispatch_modes,
    forward_ad_level,
    function_modes,
    is_batched_gradient,
    tensor_guards,
    transforms_active,
)
from tridal.runtime.specialization import ADDRESS_BITS

CallGuard: TypeAlias = Callable[[Any, Any, Any], object]
TensorsGuard: TypeAlias = Callable[[Sequence[Any]], object]

_strided = torch.strided
_grad_enabled = torch.is_grad_enabled


def make_call_guard(input: torch.Tensor, dim: int, dtype: torch.dtype | None) -> CallGuard | None:
    """Returns guard(input, dim, dtype), which is true if a call can reuse the prepared call of this one.

    The guard is false if `input` is not a tensor. Returns None if this version of torch has no `TensorGuards`.
    """
    same = tensor_guards(input)
    if same is None:
        return None
    kind, address, known_dim, known_dtype = type(input), input.data_ptr() & ADDRESS_BITS, dim, dtype
    settings, recording, level = current(), _grad_enabled(), forward_ad_level

    def guard(input: Any, dim: Any, dtype: Any) -> object:
        return (
            dim is known_dim
            and dtype is known_dtype
            and type(input) is kind
            # `same` crashes on nested tensors, on layouts other than strided, and in transforms.
            and input.layout is _strided
            and not input.is_nested
            and not transforms_active()
            and same(input)
            and (start := input.data_ptr())  # the address is 0 if the tensor has no memory
            and start & ADDRESS_BITS == address
            and _grad_enabled() is recording
            and current() is settings
            and not function_modes()
            and not dispatch_modes()
            and level() < 0
        )

    return guard


def guard_tensors(tensors: Sequence[torch.Tensor | None]) -> TensorsGuard | None:
    """Returns guard(tensors), which is true if a function that is prepared for these tensors also computes others.

    Each of the others is None where these are None, and has the same metadata and alignment where these are tensors.
    The guard is false in transforms, in modes and if gradients are enabled or not as before. It does not compare the
    settings. Returns None if a tensor occurs twice or has no memory, or if this version of torch has no `TensorGuards`.
    """
    present = [tensor for tensor in tensors if tensor is not None]
    same = tensor_guards(*present) if all(tensor.data_ptr() for tensor in present) else None
    if same is None:
        return None
    known = [value for t in present for value in (type(t), t.data_ptr() & ADDRESS_BITS)]
    make = _guard_maker(tuple(tensor is not None for tensor in tensors))
    return make(same, _grad_enabled(), *known)  # type: ignore[no-any-return]


@functools.cache
def _guard_maker(present: tuple[bool, ...]) -> Callable[..., Any]:
    """Returns make(same, recording, *type and address bits of each tensor), which returns the guard of a call.

    The source of the guard is generated, because a loop over the tensors takes twice the time.
    """
    names = [f"t{index}" for index in range(len(present))]
    given = [name for name, is_present in zip(names, present, strict=True) if is_present]
    checks = [f"{name} is None" for name in names if name not in given]
    checks += [f"type({name}) is kind_{name}" for name in given]
    checks += ["not function_modes()", "not transforms_active()", "not dispatch_modes()", "enabled() is recording"]
    for name in given:  # `same` crashes on these
        checks += [f"not batched({name})", f"{name}.layout is strided", f"not {name}.is_nested"]
    checks.append(f"same({', '.join(given)})")
    for name in given:
        checks += [f"(start := {name}.data_ptr())", f"start & {ADDRESS_BITS} == address_{name}"]
    known = "".join(f", kind_{name}, address_{name}" for name in given)
    source = f"""
def make(same, recording{known}):
    def guard(tensors):
        {", ".join(names)}, = tensors
        return {" and ".join(checks)} and level() < 0
    return guard
"""
    scope: dict[str, Any] = {
        "function_modes": function_modes, "transforms_active": transforms_active, "dispatch_modes": dispatch_modes,
        "enabled": _grad_enabled, "batched": is_batched_gradient, "strided": _strided, "level": forward_ad_level,
    }  # fmt: skip
    exec(source, scope)
    return scope["make"]  # type: ignore[no-any-return]
