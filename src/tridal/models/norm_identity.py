"""What identifies a module that may be a norm: its parameters, its device and its attributes."""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor


def parameters_of(module: torch.nn.Module) -> dict[str, Tensor]:
    """Returns the parameters by name, without those that are None and those of other modules inside."""
    return {name: tensor for name, tensor in module._parameters.items() if tensor is not None}


def device_of(module: torch.nn.Module) -> torch.device:
    """Returns the device for a comparison: that of a module's parameters, or the CPU if they have no memory."""
    devices = (tensor.device for tensor in parameters_of(module).values() if not tensor.is_meta)
    return next(devices, torch.device("cpu"))


def signature(module: torch.nn.Module, device: torch.device) -> Any:
    """Returns a key that is the same for modules that compute the same function."""
    own = {name: _value(v) for name, v in module.__dict__.items() if name not in _OF_MODULES}
    shapes = [(name, tuple(tensor.shape)) for name, tensor in parameters_of(module).items()]
    return type(module), type(module).forward, repr(sorted(own.items())), tuple(shapes), device.type


_OF_MODULES = {"training", "forward", *torch.nn.Module().__dict__}
"""The attributes that every module has, and the forward that `kernels` binds to a module."""


def _value(attribute: Any) -> Any:
    """Returns what identifies an attribute: the values of a tensor, else the attribute."""
    if not isinstance(attribute, Tensor) or attribute.is_meta:
        return attribute
    return attribute.dtype, attribute.detach().double().tolist()
