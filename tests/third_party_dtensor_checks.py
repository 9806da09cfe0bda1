"""Checks of a third party's ops on DTensors, which test_dtensor.py runs on every rank."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch.testing import assert_close

from exchanged_bytes import ExchangedBytes
from third_party_tensors import CASES, Case, loss


def _placements(case: Case, placement: Placement, dim: int) -> list[Placement]:
    """The placement of each tensor: a weight is sharded as the columns."""
    of_columns = getattr(placement, "dim", None) == dim
    column: Placement = Shard(0) if of_columns else Replicate()
    return [placement, *[column] * case.columns, *[placement] * case.residual]


def ops_of_a_third_party_equal_torch(mesh: DeviceMesh) -> None:
    """Rows that are sharded by row, and within a row, with every dim as the dim of a row."""
    for case in CASES.values():
        for dim in range(3):
            for placement in (*map(Shard, range(3)), Replicate()):
                wholes = case.tensors((3, 5, 6), dim)
                placed = zip(wholes, _placements(case, placement, dim), strict=True)
                sharded = [distribute_tensor(t.detach(), mesh, [p]).requires_grad_() for t, p in placed]
                results, expected = case.function(*sharded, dim=dim), case.expected(*wholes, dim=dim)
                single = isinstance(expected, torch.Tensor)
                pairs = [(results, expected)] if single else list(zip(results, expected, strict=True))
                for found, wanted in pairs:
                    assert_close(found.full_tensor(), wanted)
                loss([found.full_tensor() for found, _ in pairs]).backward()
                loss(expected).backward()
                for tensor, whole in zip(sharded, wholes, strict=True):
                    assert tensor.grad is not None
                    assert_close(tensor.grad.full_tensor(), whole.grad)


def ops_of_a_third_party_exchange_statistics_only(mesh: DeviceMesh) -> None:
    rows, cols = 16, 512
    for name, (forward, backward) in {"skip_norm": (1, 2), "logsumexp": (2, 2)}.items():
        case = CASES[name]
        for placement, share in ((Shard(1), 4 * rows), (Shard(0), 0)):
            tensors = case.tensors((rows, cols), dtype=torch.float32, gradient=False)
            placed = zip(tensors, _placements(case, placement, 1), strict=True)
            sharded = [distribute_tensor(t, mesh, [p]).requires_grad_() for t, p in placed]
            with ExchangedBytes() as exchanged:
                y = case.function(*sharded)
            assert exchanged.bytes == forward * share, (name, placement)
            with ExchangedBytes() as exchanged:
                torch.autograd.grad(y, sharded, torch.ones_like(y))
            assert exchanged.bytes == backward * share, (name, placement)


CHECKS = (ops_of_a_third_party_equal_torch, ops_of_a_third_party_exchange_statistics_only)
