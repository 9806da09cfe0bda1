"""Rotary embedding of DTensors: each rank rotates its shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from tridal.library.losses.dtensor import distributed

Tensor = torch.Tensor
_WHOLE: Placement = Replicate()


def rotate_shards(rotate: Callable[..., Any], given: Sequence[Tensor | None], heads: int) -> Any:
    """Returns the results for query, key, cos and sin, of which some are distributed. Key may be None.

    `rotate` computes plain tensors, and `heads` is the dim of the heads.
    A tensor that is not distributed is the same on all ranks. Shards along the last dim are gathered first. All others
    stay where they are, and cos and sin get the shards of the batch and of the length that they have.
    """
    *pair, cos, sin = distributed(*given)
    mesh, rank = pair[0].device_mesh, pair[0].dim()
    batch, length = rank - 4, 2 * rank - 5 - heads
    shards = [x.redistribute(mesh, [_of_rows(p, rank) for p in x.placements]) for x in pair if x is not None]
    factors = [
        [
            factor.redistribute(mesh, [_of_factor(p, factor, batch, length) for p in x.placements])
            for factor in (cos, sin)
        ]
        for x in shards
    ]
    local = [x.to_local() for x in shards]
    local_factors = [[factor.to_local() for factor in of_shard] for of_shard in factors]
    placements = [[factor.placements for factor in of_shard] for of_shard in factors]
    if len(shards) > 1 and placements[0] == placements[1]:
        results = rotate(*local, *local_factors[0])
    else:  # the shards of query and key have other rows of cos and sin
        results = [rotate(x, None, *own) for x, own in zip(local, local_factors, strict=True)]
    found = tuple(map(_like, shards, results))
    return found[0] if len(shards) == 1 else found


def _of_rows(placement: Placement, rank: int) -> Placement:
    return placement if type(placement) is Shard and 0 <= placement.dim < rank - 1 else _WHOLE


def _of_factor(placement: Placement, factor: Tensor, batch: int, length: int) -> Placement:
    """Returns the placement of cos or sin for a placement of query or key. `batch` is negative without a batch."""
    if type(placement) is Shard and placement.dim == length:
        return Shard(factor.dim() - 2)
    has_batch = factor.dim() == 3 and factor.shape[0] > 1
    return Shard(0) if type(placement) is Shard and placement.dim == batch and has_batch else _WHOLE


def _like(x: Any, local: Tensor) -> Tensor:
    """Returns the DTensor with the shape and the placements of x, of which each rank passes its shard."""
    strides = torch.empty_like(torch.empty_strided(x.shape, x.stride(), device="meta")).stride()
    return DTensor.from_local(local, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=strides)
