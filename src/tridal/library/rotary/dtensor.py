"""Rotary embedding of DTensors: each rank rotates its shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from tridal.library.losses.dtensor import distributed

Tensor = torch.Tensor
_WHOLE: Placement = Replicate()


def rotate_shards(
    rotate: Callable[..., tuple[Tensor, Tensor]], given: Sequence[Tensor], heads: int
) -> tuple[Tensor, Tensor]:
    """Returns the results for query, key, cos and sin, of which some are distributed.

    `rotate` computes plain tensors, and `heads` is the dim of the heads.
    A tensor that is not distributed is the same on all ranks. Shards along the last dim are gathered first. All others
    stay where they are, and cos and sin get the shards of the batch and of the length that they have.
    """
    tensors = distributed(*given)
    mesh = tensors[0].device_mesh
    shards = [x.redistribute(mesh, [_of_rows(placement) for placement in x.placements]) for x in tensors[:2]]
    factors = [[_of_factor(p, factor, heads) for p in x.placements] for x in shards for factor in tensors[2:]]
    local_factors = [
        factor.redistribute(mesh, placements).to_local()
        for factor, placements in zip((*tensors[2:], *tensors[2:]), factors, strict=True)
    ]
    local = [x.to_local() for x in shards]
    if factors[:2] == factors[2:]:
        results = rotate(*local, *local_factors[:2])
    else:  # the shards of query and key have other rows of cos and sin
        pairs = zip(local, (local_factors[:2], local_factors[2:]), strict=True)
        results = tuple(rotate(x, x, *own)[0] for x, own in pairs)  # type: ignore[assignment]
    first, second = (_like(x, result) for x, result in zip(shards, results, strict=True))
    return first, second


def _of_rows(placement: Placement) -> Placement:
    return placement if type(placement) is Shard and placement.dim in (0, 1, 2) else _WHOLE


def _of_factor(placement: Placement, factor: Tensor, heads: int) -> Placement:
    if type(placement) is Shard and placement.dim == 3 - heads:
        return Shard(factor.dim() - 2)
    has_batch = factor.dim() == 3 and factor.shape[0] > 1
    return Shard(0) if type(placement) is Shard and placement.dim == 0 and has_batch else _WHOLE


def _like(x: Any, local: Tensor) -> Tensor:
    """Returns the DTensor with the shape and the placements of x, of which each rank passes its shard."""
    strides = torch.empty_like(torch.empty_strided(x.shape, x.stride(), device="meta")).stride()
    return DTensor.from_local(local, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=strides)
