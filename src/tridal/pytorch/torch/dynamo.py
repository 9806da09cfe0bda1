"""Functions whose results torch.compile treats as constants. Only traced calls import this module and dynamo."""

from __future__ import annotations

import torch

from tridal.pytorch import device_context
from tridal.pytorch.torch import dtensor_rules, private


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_served(device_type: str) -> bool:
    """Returns whether a backend serves the device type. The compiled op selects the backend again at each call."""
    return device_context.is_served(device_type)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def has_rules() -> bool:
    """Returns whether there are rules of DTensors, see `dtensor_rules.has_rules`."""
    return dtensor_rules.has_rules()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def has_autocast(device_type: str) -> bool:
    """Returns whether autocast computes softmax in float32 on a device type."""
    return device_context.has_autocast(device_type)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def autocasts(op: str, device_type: str) -> bool:
    """Returns whether autocast has a rule for an ATen op on a device type."""
    return private.autocasts(op, device_type)
