"""Checks of kernels that compute rows of DTensors which are sharded: each rank has the kernels of its part."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing import assert_close

import tridal
from dtensor_call_checks import step
from dtensor_checks import ExchangedBytes, check, row_dim
from op_samples import OPS, SAMPLES
from tridal.devices import registry
from tridal.ops.row_parts import row_parts
from tridal.pytorch.torch import private


def served(mesh: DeviceMesh) -> bool:
    return registry.serving(mesh.device_type, tridal.devices.settings.current()) is not None


@check
def kernels_of_parts_equal_torch(mesh: DeviceMesh) -> None:
    samples = [sample for sample in OPS.values() if sample.op.arguments[0].role == "element"]
    for sample, cols in itertools.product((*samples, SAMPLES["softmax of dim 0"]), (6, 13, mesh.size() - 1)):
        torch.manual_seed(0)
        dim = row_dim(sample)
        whole = sample.leaves(*(cols if axis == dim else 3 + axis for axis in range(3)))
        found = step(sample, whole, mesh, Shard(dim))
        expected = sample.expected(**whole)
        results = expected if isinstance(expected, tuple) else (expected,)
        loss = sum(result.cos().sum() for result in results if result.is_floating_point())
        wanted = torch.autograd.grad(loss, [tensor for tensor in whole.values() if tensor.requires_grad])
        for result, exact in zip(found, (*results, *wanted), strict=True):
            assert_close(result.full_tensor(), exact.detach())


@check
def kernels_compute_sharded_rows(mesh: DeviceMesh) -> None:
    """softmax, its gradient and others exchange statistics between two launches."""
    for name in ("softmax", "log_softmax", "logsumexp", "l2_norm", "rms_norm"):
        sample = OPS[name]
        with tridal.record_calls() as calls:
            step(sample, sample.leaves(4, 3, 8, dtype=torch.float32), mesh, Shard(row_dim(sample)))
        by_torch = not served(mesh) or name == "rms_norm"  # its functions use the length of a row
        assert all((call.backend == "torch") is by_torch for call in calls), (name, calls)
        assert calls


@check
def kernels_exchange_statistics_once(mesh: DeviceMesh) -> None:
    """Two numbers per row in the forward, and one in the backward."""
    sample, gathered = SAMPLES["softmax of dim -1"], list[tuple[int, ...]]()

    def all_gather(tensor: torch.Tensor, *group: Any) -> torch.Tensor:
        gathered.append(tuple(tensor.shape))
        return exchange(tensor, *group)

    exchange = private.all_gather
    with patch.object(private, "all_gather", all_gather):
        step(sample, sample.leaves(5, 8), mesh, Shard(1))
    assert gathered == ([(2, 5), (1, 5)] if served(mesh) else [])


@check
def a_mode_on_one_rank_changes_no_exchange(mesh: DeviceMesh) -> None:
    """A profiler of one rank may be a mode, for example."""
    whole = torch.randn(4, 6)
    for sample in (SAMPLES["softmax of dim -1"], OPS["rms_norm"]):
        with ExchangedBytes() if mesh.get_rank() else nullcontext():
            y: Any = sample.ours(distribute_tensor(whole, mesh, [Shard(1)]))
        assert_close(y.full_tensor(), sample.theirs(whole))


@check
def special_values_in_one_part_of_a_row(mesh: DeviceMesh) -> None:
    whole = torch.randn(6, 12)
    whole[0, :6] = whole[1] = whole[2, :11] = -torch.inf
    whole[3, 0], whole[4, 11], whole[5, 3] = torch.nan, torch.inf, 1e30
    for name, dtype in itertools.product(("softmax", "log_softmax"), (torch.float32, torch.bfloat16, torch.float64)):
        x = whole.to(dtype)
        y: Any = getattr(tridal, name)(distribute_tensor(x, mesh, [Shard(1)]))
        assert_close(y.full_tensor(), getattr(torch, name)(x, -1), equal_nan=True)
        y = getattr(tridal, name)(distribute_tensor(x.t(), mesh, [Shard(0)]).t(), -1)  # shards are not contiguous
        assert_close(y.full_tensor(), getattr(torch, name)(x, -1), equal_nan=True)


@check
def rows_that_are_sharded_over_two_mesh_dims(mesh: DeviceMesh) -> None:
    square = init_device_mesh(mesh.device_type, (mesh.size(), 1))
    for placements in ((Shard(1), Shard(1)), (Shard(1), Shard(0))):
        whole = torch.randn(4, 10, dtype=torch.float64)
        for _ in range(2):
            y: Any = tridal.softmax(distribute_tensor(whole, square, placements))
            assert_close(y.full_tensor(), torch.softmax(whole, -1))


@check
def a_compiled_function_computes_sharded_rows(mesh: DeviceMesh) -> None:
    whole = torch.randn(4, 10)
    compiled = torch.compile(lambda x: tridal.softmax(x) * 2, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        x = distribute_tensor(whole, mesh, [Shard(1)])
        y = compiled(x)
        assert isinstance(y, DTensor)
        assert_close(y.full_tensor(), 2 * torch.softmax(whole, -1))
        assert_close((tridal.softmax(x) * 2).full_tensor(), y.full_tensor())  # type: ignore[attr-defined]


@check
def only_kernels_that_need_no_whole_row_have_parts(mesh: DeviceMesh) -> None:
    if not served(mesh):
        return
    for name, wanted in (("softmax", True), ("logsumexp", True), ("rms_norm", False), ("layer_norm", False)):
        op = OPS[name].op
        assert (row_parts(op, op.signature, 2) is not None) is wanted, name
        assert row_parts(op, op.signature, 9) is None
