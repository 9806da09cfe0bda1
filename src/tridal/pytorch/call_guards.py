"""Call guards: a call guard decides whether a call can reuse the prepared call of an earlier one.

It uses `TensorGuards`, the guards of torch.compile. They compare shape, strides, dtype, device, requires_grad, and the
dispatch keys of the tensor and the thread. The dispatch keys cover autocast and tracers. Separate checks of these take
several times as long.
"""

from __future__ import annotations

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


def guard_tensors(tensors: Sequence[torch.Tensor | None]) -> Callable[[Sequence[Any]], bool] | None:
    """Returns guard(tensors), which is true if a function that is prepared for these tensors also computes others.

    Each of the others is None where these are None, and has the same metadata and alignment where these are tensors.
    The guard is false in transforms, in modes and if gradients are enabled or not as before. It does not compare the
    settings. Returns None if a tensor occurs twice or has no memory, or if this version of torch has no `TensorGuards`.
    """
    present = [tensor for tensor in tensors if tensor is not None]
    known = [(type(t), None if t is None else t.data_ptr() & ADDRESS_BITS) for t in tensors]
    same = tensor_guards(*present) if all(tensor.data_ptr() for tensor in present) else None
    if same is None:
        return None
    recording, level = _grad_enabled(), forward_ad_level
    all_present = len(present) == len(tensors)

    def guard(tensors: Sequence[Any]) -> bool:
        if function_modes() or transforms_active() or dispatch_modes() or _grad_enabled() is not recording:
            return False
        for tensor, (kind, address) in zip(tensors, known, strict=True):
            if type(tensor) is not kind:
                return False
            # `same` crashes on these layouts, on nested tensors and on batched gradients.
            if tensor is not None and (
                is_batched_gradient(tensor)
                or tensor.layout is not _strided
                or tensor.is_nested
                or not (start := tensor.data_ptr())
                or start & ADDRESS_BITS != address
            ):
                return False
        given = tensors if all_present else [tensor for tensor in tensors if tensor is not None]
        return same(*given) and level() < 0

    return guard
