"""What torch.compile takes as constant while it traces the op. Imported by a traced call only: it imports dynamo."""

from __future__ import annotations

import sys

import torch

from tridal.pytorch import device_context as places


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def served(device_type: str) -> bool:
    """Whether a backend serves the type. Which one, the compiled op asks again at each call."""
    return places.served(device_type)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def autocasts(device_type: str) -> bool:
    """Whether autocast on that device type makes softmax compute in float32."""
    return places.autocast_key(device_type) is not None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def distributes() -> bool:
    """Whether there can be DTensors in this process."""
    return "torch.distributed.tensor" in sys.modules
