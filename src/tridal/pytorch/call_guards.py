"""The same call again: whether a tensor is as that of an earlier call was, by a single check of torch's.

It is the one that torch.compile guards its code with: shape, strides, dtype, device, whether it wants a gradient, and
every dispatch key of the tensor and the thread, and so of autocast and tracers. To ask for them one by one takes
several times as long. It is private to torch; where it is missing, every call asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad

from tridal.devices.settings import current
from tridal.runtime.specialization import ADDRESS_BITS

GUARDS: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
"""What guards the code of torch.compile, and what that allocates with. Private to torch; None if it is elsewhere."""

Fits: TypeAlias = Callable[[Any, Any, Any], object]

_function_modes = torch._C._len_torch_function_stack
_strided = torch.strided
_transforming = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_grad_enabled = torch.is_grad_enabled


def like(input: torch.Tensor, dim: int, dtype: torch.dtype | None) -> Fits | None:
    """fits(input, dim, dtype): whether a call here would be prepared as that of these arguments is, here and now.

    False for whatever is no tensor. None if this torch doesn't check as expected.
    """
    try:
        alike = GUARDS.TensorGuards(input, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        if not alike(input) or alike(None):
            return None
    except Exception:
        return None
    kind, address, asked, wanted = type(input), input.data_ptr() & ADDRESS_BITS, dim, dtype
    settings, recording = current(), _grad_enabled()

    def fits(input: Any, dim: Any, dtype: Any) -> object:
        return (
            dim is asked
            and dtype is wanted
            and type(input) is kind
            # Of nested tensors, in a transform or not, and of other layouts, torch's check asks what kills the process.
            and input.layout is _strided
            and not input.is_nested
            and not _transforming()
            and alike(input)
            and (here := input.data_ptr())  # nothing is behind address 0
            and here & ADDRESS_BITS == address
            and _grad_enabled() is recording
            and current() is settings
            and not _function_modes()
            and not _dispatch_modes()
            and forward_ad._current_level < 0
        )

    return fits
