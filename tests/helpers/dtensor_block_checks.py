"""Checks of DTensor for tensors that several rows share: the scale and gate of modulated norms, cos and sin."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.testing import assert_close

import tridal
from dtensor_checks import ExchangedBytes, check
from tridal.errors import DTypeError


@check
def a_scale_per_batch_follows_the_shards(mesh: DeviceMesh) -> None:
    """The batch is sharded, with the scale or without; or the tokens, so that gradients of the scale are sums."""
    placements = ((Shard(0), Shard(0)), *((where, Replicate()) for where in (*map(Shard, range(3)), Replicate())))
    for name, (placement, of_scale) in itertools.product(("rms_norm", "layer_norm"), placements):
        torch.manual_seed(0)
        whole = [torch.randn(*shape, dtype=torch.float64) for shape in ((4, 3, 6), (4, 1, 6), (4, 1, 6))]
        leaves, found = [tensor.requires_grad_() for tensor in whole], []
        for tensor, where in zip(whole, (placement, of_scale, of_scale), strict=True):
            found.append(distribute_tensor(tensor.detach(), mesh, [where]).requires_grad_())
        x, scale, shift = leaves
        expected = getattr(torch.nn.functional, name)(x, (6,), eps=1e-5) * (1 + scale) + shift
        y = getattr(tridal, f"modulated_{name}")(found[0], found[1], (6,), eps=1e-5, shift=found[2])
        grad = torch.randn_like(expected)
        gradients = torch.autograd.grad(y, found, distribute_tensor(grad, mesh, y.placements))
        wanted = torch.autograd.grad(expected, leaves, grad)
        for result, exact in zip((y, *gradients), (expected, *wanted), strict=True):
            assert_close(result.full_tensor(), exact.detach())
        assert gradients[1].placements == ((Partial(),) if placement == Shard(1) else (placement,))


@check
def a_gate_per_batch_follows_the_shards(mesh: DeviceMesh) -> None:
    shapes = ((4, 3, 6), (4, 1, 6), (4, 3, 6), (4, 1, 6))
    for name, shard in itertools.product(("rms_norm", "layer_norm"), range(3)):
        torch.manual_seed(0)
        leaves = [torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in shapes]
        places = [[Shard(shard)] if tensor.shape[1] > 1 else [Replicate()] for tensor in leaves]
        pairs = zip(leaves, places, strict=True)
        found = [distribute_tensor(tensor.detach(), mesh, place).requires_grad_() for tensor, place in pairs]
        x, scale, residual, gate = leaves
        total = residual + gate * x
        expected = getattr(torch.nn.functional, name)(total, (6,), eps=1e-5) * (1 + scale), total
        function = getattr(tridal, f"modulated_{name}")
        y = function(found[0], found[1], (6,), eps=1e-5, residual=found[2], gate=found[3])
        grads = [torch.randn_like(result) for result in expected]
        given = [distribute_tensor(g, mesh, result.placements) for g, result in zip(grads, y, strict=True)]
        gradients, wanted = torch.autograd.grad(y, found, given), torch.autograd.grad(expected, leaves, grads)
        for result, exact in zip((*y, *gradients), (*expected, *wanted), strict=True):
            assert_close(result.full_tensor(), exact.detach())


@check
def ranks_rotate_their_shards(mesh: DeviceMesh) -> None:
    """Shards of the batch, the heads or the length stay where they are. cos and sin may be plain tensors."""
    torch.manual_seed(0)
    query, key = (torch.randn(2, heads, 6, 4, dtype=torch.float64) for heads in (4, 2))
    batches = torch.randn(2, 2, 6, 4, dtype=torch.float64), torch.randn(2, 6, 4, dtype=torch.float64)
    shard, alike = [Shard(dim) for dim in range(4)], Replicate()
    kinds = [(shard[0], shard[0]), (shard[1], alike), (alike, shard[1]), (shard[2], shard[2]), (shard[3], alike)]
    for number, placements in enumerate(kinds):
        (cos, sin), plain = batches[number % 2], number % 3 == 0
        leaves = [x.clone().requires_grad_() for x in (query, key)]
        expected = tridal.rotary_embedding(*leaves, cos, sin)
        wanted = torch.autograd.grad([y.sin().sum() for y in expected], leaves)
        placed = zip((query, key), placements, strict=True)
        shards = [distribute_tensor(x, mesh, [p]).requires_grad_() for x, p in placed]
        factors = (cos, sin) if plain else tuple(distribute_tensor(x, mesh, [alike]) for x in (cos, sin))
        with ExchangedBytes() as exchanged:
            found = tridal.rotary_embedding(*shards, *factors)
        assert (exchanged.bytes > 0) == (Shard(3) in placements), placements
        assert [y.placements for y in found] == [(alike if p == Shard(3) else p,) for p in placements]
        grads = torch.autograd.grad([y.sin().sum() for y in found], shards)
        for tensor, exact in zip((*found, *grads), (*expected, *wanted), strict=True):
            assert_close(tensor.full_tensor(), exact.detach())
    cos, sin = query[1, :, :2, 0].chunk(2, -1)  # of one tensor [length, heads, dim], of which a part is rotated
    part = functools.partial(tridal.rotary_embedding, key=None, cos=cos, sin=sin, unsqueeze_dim=1, rotary_dim=2)
    for p in shard[:3]:
        assert torch.equal(part(distribute_tensor(query[0], mesh, [p])).full_tensor(), part(query[0]))


@check
def ranks_normalize_and_rotate_their_shards(mesh: DeviceMesh) -> None:
    """The gradient of a weight is a sum over the shards of its tensor. Weights may be plain tensors, too."""
    torch.manual_seed(0)
    given = [torch.randn(*shape, dtype=torch.float64) for shape in ((2, 4, 6, 4), (2, 2, 6, 4), (4,), (4,))]
    angle, alike = torch.randn(2, 6, 4, dtype=torch.float64), Replicate()
    kinds = [(Shard(0), Shard(0)), (Shard(1), alike), (Shard(2), Shard(1)), (Shard(3), Shard(2))]
    for (number, placements), key in itertools.product(enumerate(kinds), (True, False)):
        leaves = [x.clone().requires_grad_() for x in given]
        placed = [
            distribute_tensor(x, mesh, [p]).requires_grad_()
            for x, p in zip(given, (*placements, alike, alike), strict=True)
        ]
        if number % 2:
            placed[2:] = [x.clone().requires_grad_() for x in given[2:]]
        results = []
        for query, other, *weights in (leaves, placed):
            y = tridal.qk_norm_rotary(query, other if key else None, *weights, angle.cos(), angle.sin())  # type: ignore[call-overload]
            y, needed = (y, (query, other, *weights)) if key else ((y,), (query, weights[0]))
            results.append((*y, *torch.autograd.grad([t.sin().sum() for t in y], needed)))
        for exact, found in zip(*results, strict=True):
            assert_close(found.full_tensor() if isinstance(found, DTensor) else found, exact.detach())
        if number == 0:
            assert results[1][-1].placements == (Partial(),)
    with pytest.raises(DTypeError, match="query must be a DTensor"):  # FSDP2 has sharded a weight
        tridal.qk_norm_rotary(given[0], None, distribute_tensor(given[2], mesh, [Shard(0)]), None, angle, angle)
