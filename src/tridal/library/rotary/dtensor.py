"""Rotary embedding of DTensors: each rank rotates its shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from tridal.library.losses.dtensor import distributed

Tensor = torch.Tensor
_WHOLE: Placement = Replicate()


def rotate_shards(
    rotate: Callable[..., Any], given: Sequence[Tensor | None], heads: int, weights: Sequence[Tensor | None] = ()
) -> Any:  # fmt: skip
    """Returns the results for query, key, cos and sin, of which some are distributed. Key may be None.

    `rotate` computes plain tensors, and `heads` is the dim of the heads. It gets the `weights` of query and key after
    sin. Each rank gets all of a weight, whose gradient is a sum over the shards.
    A tensor that is not distributed is the same on all ranks. Shards along the last dim are gathered first. All others
    stay where they are, and cos and sin get the shards of the batch and of the length that they have.
    """
    *pair, cos, sin = distributed(*given)
    weights = distributed(*weights, like=pair)
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
    local_weights = [_whole(weight, x) for weight, x in zip(weights, shards, strict=False)]
    if len(shards) > 1 and placements[0] == placements[1]:
        results = rotate(*local, *local_factors[0], *local_weights)
    else:  # the shards of query and key have other rows of cos and sin
        results = [rotate(x, None, *local_factors[i], *local_weights[i : i + 1]) for i, x in enumerate(local)]
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


def _whole(weight: Any, x: Any) -> Tensor | None:
    """Returns all of a weight. Its gradient is that of the shard of x, which is a part of a sum if x is sharded."""
    if weight is None:
        return None
    of_gradient = [Partial() if isinstance(p, Shard) else _WHOLE for p in x.placements]
    if any(p != _WHOLE for p in weight.placements):  # otherwise ranks would exchange its gradient
        weight = weight.redistribute(x.device_mesh, [_WHOLE] * x.device_mesh.ndim)
    return weight.to_local(grad_placements=of_gradient)  # type: ignore[no-any-return]


def _like(x: Any, local: Tensor) -> Tensor:
    """Returns the DTensor with the shape and the placements of x, of which each rank passes its shard."""
    strides = torch.empty_like(torch.empty_strided(x.shape, x.stride(), device="meta")).stride()
    return DTensor.from_local(local, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=strides)
