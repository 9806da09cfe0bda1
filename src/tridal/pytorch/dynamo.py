"""What torch.compile treats as constant when it traces an op. It imports dynamo, so traced calls only import it."""

from __future__ import annotations

import sys

import torch

from tridal.pytorch import device_context


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_served(device_type: str) -> bool:
    """Whether a backend serves the type. The compiled op selects the backend again at each call."""
    return device_context.is_served(device_type)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def distributed_loaded() -> bool:
    """Whether this process can have DTensors."""
    return "torch.distributed.tensor" in sys.modules
