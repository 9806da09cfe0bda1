"""Checks of norms of DTensors, which test_dtensor.py runs on every rank."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.nn import functional
from torch.testing import assert_close

import tridal
from exchanged_bytes import ExchangedBytes

NAMES = ("rms_norm", "layer_norm")


def parameters(name: str, shape: tuple[int, ...], mesh: DeviceMesh) -> tuple[list[torch.Tensor], list[DTensor]]:
    """Random parameters, and the same as replicated DTensors."""
    whole = [torch.randn(shape, dtype=torch.float64) for _ in NAMES[: 1 + (name == "layer_norm")]]
    sharded = [distribute_tensor(tensor, mesh, [Replicate()] * mesh.ndim).requires_grad_() for tensor in whole]
    return [tensor.requires_grad_() for tensor in whole], sharded


def compare(
    name: str, mesh: DeviceMesh, shape: tuple[int, ...], dims: int, placements: list[Placement], has_residual: bool
) -> list[Any]:
    """Compares results and gradients with torch on whole tensors. Returns the placements of the gradients."""
    torch.manual_seed(0)
    wanted = shape[-dims:]
    wholes = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(1 + has_residual)]
    given, sharded_given = parameters(name, wanted, mesh)
    total = sum(wholes[1:], wholes[0])
    expected = [getattr(functional, name)(total, wanted, *given), *[total] * has_residual]
    dy = [torch.randn(shape, dtype=torch.float64) for _ in expected]
    gradients = torch.autograd.grad(expected, [*wholes, *given], dy)
    sharded = [distribute_tensor(x.detach(), mesh, placements).requires_grad_() for x in wholes]
    residual = sharded[1] if has_residual else None
    found = getattr(tridal, name)(sharded[0], wanted, *sharded_given, residual=residual)
    found = list(found) if has_residual else [found]
    found_gradients = torch.autograd.grad(
        found, [*sharded, *sharded_given], [distribute_tensor(g, mesh, placements) for g in dy]
    )
    for result, exact in zip((*found, *found_gradients), (*expected, *gradients), strict=True):
        assert_close(result.full_tensor(), exact.detach())
    assert all(list(result.placements) == placements for result in found)
    return [list(gradient.placements) for gradient in found_gradients]


def norms_of_every_placement_equal_torch(mesh: DeviceMesh) -> None:
    for name, dims, residual in itertools.product(NAMES, (1, 2), (False, True)):
        for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
            found = compare(name, mesh, (3, 5, 6), dims, [placement], residual)
            assert found[0] == [placement]
            first = 3 - dims
            dim = getattr(placement, "dim", -1)
            expected = Replicate() if dim < 0 else Partial() if dim < first else Shard(dim - first)
            assert found[-1] == [expected], (name, placement, found)


def norms_exchange_statistics_only(mesh: DeviceMesh) -> None:
    rows, cols = 16, 512
    for name, (forward, backward) in {"rms_norm": (1, 1), "layer_norm": (2, 2)}.items():
        for placement, share in ((Shard(-1), 4 * rows), (Shard(0), 0)):
            x = distribute_tensor(torch.randn(rows, cols), mesh, [placement]).requires_grad_()
            weight = distribute_tensor(torch.ones(cols), mesh, [Shard(0) if share else Replicate()]).requires_grad_()
            with ExchangedBytes() as exchanged:
                y = getattr(tridal, name)(x, (cols,), weight)
            assert exchanged.bytes == forward * share
            dy = distribute_tensor(torch.ones(rows, cols), mesh, [placement])
            with ExchangedBytes() as exchanged:
                torch.autograd.grad(y, (x, weight), dy)
            assert exchanged.bytes == backward * share


def norms_of_partial_and_empty_shards(mesh: DeviceMesh) -> None:
    local = torch.randn(3, 6, dtype=torch.float64)
    x = DTensor.from_local(local, mesh, [Partial()])
    for name in NAMES:
        assert_close(getattr(tridal, name)(x, (6,)).full_tensor(), getattr(functional, name)(x.full_tensor(), (6,)))
        compare(name, mesh, (1, 6), 1, [Shard(0)], True)


CHECKS = (norms_of_every_placement_equal_torch, norms_exchange_statistics_only, norms_of_partial_and_empty_shards)
