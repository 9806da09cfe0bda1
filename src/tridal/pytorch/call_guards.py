"""Guards of a repeated call: one check of PyTorch's own that a tensor is like the one of an earlier call.

torch.compile guards its code with this check. It compares shape, strides, dtype, device, requires_grad, and all
dispatch keys of the tensor and the thread, which cover autocast and tracers. Separate checks take several times the
time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from tridal.devices.settings import current
from tridal.pytorch.private import dispatch_modes, forward_ad_level, function_modes, tensor_guards, transforms_active
from tridal.runtime.specialization import ADDRESS_BITS

CallGuard: TypeAlias = Callable[[Any, Any, Any], object]

_strided = torch.strided
_grad_enabled = torch.is_grad_enabled


def make_call_guard(input: torch.Tensor, dim: int, dtype: torch.dtype | None) -> CallGuard | None:
    """guard(input, dim, dtype): whether a call with these arguments would be prepared like this one.

    It is false for everything that is not a tensor. None if this torch does not have the check.
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
            # The check crashes on nested tensors, in transforms, and on other layouts.
            and input.layout is _strided
            and not input.is_nested
            and not transforms_active()
            and same(input)
            and (start := input.data_ptr())  # a tensor at address 0 has no memory
            and start & ADDRESS_BITS == address
            and _grad_enabled() is recording
            and current() is settings
            and not function_modes()
            and not dispatch_modes()
            and level() < 0
        )

    return guard
