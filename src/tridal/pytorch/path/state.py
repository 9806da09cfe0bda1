"""Questions about tensors and the thread: is a tensor plain, can its values be read, does autograd record a call?"""

from __future__ import annotations

import torch

from tridal.pytorch.torch import private

Tensor = torch.Tensor
_compiling = torch.compiler.is_dynamo_compiling


def is_plain(tensor: Tensor) -> bool:
    """Returns whether the tensor has no subclass of torch.Tensor, except that it may be a parameter."""
    return type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter


def is_direct(*tensors: Tensor) -> bool:
    """Returns whether a call runs without PyTorch's dispatcher: on plain tensors, outside of modes and transforms."""
    return all(map(is_plain, tensors)) and not private.needs_dispatcher() and not private.function_modes()


def has_values(*tensors: Tensor) -> bool:
    """Returns whether values of tensors can be read: no subclass, transform, mode, tracer or compiler hides them.

    Example:
        >>> tridal.pytorch.has_values(torch.ones(2))
        True
    """
    hidden = _compiling() or private.transforms_active() or private.dispatch_modes() or private.tracing_state()
    return not hidden and all(map(is_plain, tensors))


def records_gradient(*tensors: Tensor | None) -> bool:
    """Returns whether autograd records a call: one of the tensors requires grad, and gradients are enabled.

    Inference mode records nothing, even if `enable_grad` is entered inside.
    """
    enabled = torch.is_grad_enabled() and (_compiling() or not torch.is_inference_mode_enabled())
    return enabled and any(tensor is not None and tensor.requires_grad for tensor in tensors)
