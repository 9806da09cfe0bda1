"""The keys of calls of DTensors. They are in the same dict as all other keys, see `tridal.pytorch.path.keys`.

A key describes a DTensor by its spec and its shard. The spec has the mesh, the placements, the sizes, the strides and
the dtype. It is hashable, because torch keys its own sharding propagation with it. Equal meshes may have other process
groups, so the identity of the mesh is a part of the key, too: the spec in the key keeps it alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from tridal.devices.settings import current
from tridal.pytorch.path import keys
from tridal.pytorch.torch import private

RUNS: dict[type, Callable[..., Any]] = {}
"""For the class DTensor: make(op, arguments) returns run(*tensors) of a call. The DTensor rules add it."""


def is_sharded(*tensors: Any) -> bool:
    """Returns whether one of the tensors is a DTensor."""
    return bool(RUNS) and any(isinstance(tensor, (*RUNS,)) for tensor in tensors)


def shard_key(what: Any, values: Iterable[Any]) -> tuple[Any, ...] | None:
    """Returns the key of a call whose tensors are DTensors, or None if it has no key.

    Args:
        what: a part of the key: what the call computes.
        values: the tensors and the other arguments of the call.
    """
    if not RUNS:
        return None
    device, recording = None, torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    parts: list[Any] = [None, what, current(), recording]  # the first part of a key is the rounded number of rows
    for value in values:
        described: tuple[Any, ...] | None = None
        if (kind := value.__class__) in RUNS:
            described, device = _described(value, recording), value.device
        elif kind in keys.VALUES and value == value:
            described = (value, kind)
        elif kind in keys.SIZES and all(size.__class__ in keys.VALUES for size in value):
            described = (*value, *map(type, value))
        if described is None:
            return None
        parts.append(described)
    return None if device is None else (*parts, private.any_autocast() and keys.autocast(device))


def direct_key(what: Any, values: Iterable[Any]) -> tuple[Any, ...] | None:
    """Returns the key of a call that does not use PyTorch's dispatcher, which modes, transforms and tracers need."""
    if private.function_modes() or private.needs_dispatcher():
        return None
    return shard_key(what, values)


def gradient_key(call: Any, *values: Any) -> tuple[Any, ...] | None:
    """Returns the key of a backward of DTensors, see `tridal.pytorch.path.keys.key_function`."""
    return None if torch.is_grad_enabled() else direct_key(call, values)


def _described(tensor: Any, recording: bool) -> tuple[Any, ...] | None:
    """Returns what describes a DTensor in a key, or None if its shard is of a subclass of torch.Tensor."""
    found = private.spec_and_shard(tensor)
    if found is None or found[1].__class__ is not torch.Tensor:
        return None
    spec, shard = found
    return spec, id(spec.mesh), shard.shape, shard.dtype, recording and tensor.requires_grad
