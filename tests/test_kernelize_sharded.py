"""Kernelized models whose parameters are sharded over two processes: FSDP2, and sequence parallel norms."""

from __future__ import annotations

import os
import socket
import traceback
from datetime import timedelta
from typing import Any

import pytest
import torch

pytest.importorskip("torch.distributed.tensor")
pytest.importorskip("transformers")
if not torch.distributed.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import tridal
from model_helpers import assert_same_step, build, ops_of, step

OPS = {"rms_norm", "rms_norm_backward", "cross_entropy", "cross_entropy_backward"}


def shard(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for module in (*model.model.layers, model.lm_head, model):
        fully_shard(module, mesh=mesh)


def check_fsdp2(mesh: Any, order: str) -> None:
    expected = step(build("Llama"))
    model = build("Llama")
    if order == "kernelize first":
        report = tridal.kernelize(model, fused_loss=True)
    shard(model, mesh)
    if order == "shard first":
        report = tridal.kernelize(model, fused_loss=True)
    got: list[Any] = []
    assert ops_of(lambda: got.append(step(model))) == OPS, report
    outputs, gradients = got[0]
    assert outputs.logits is None
    assert_same_step((outputs, {name: grad.full_tensor() for name, grad in gradients.items()}), expected)
    report.restore()
    assert ops_of(lambda: got.append(step(model))) == set()
    outputs, gradients = got[1]
    assert_same_step((outputs, {name: grad.full_tensor() for name, grad in gradients.items()}), expected)


def check_sequence_parallel_norm(mesh: Any) -> None:
    norm = build("Llama").model.norm
    x = torch.randn(2, 6, 32)
    expected = norm(x)
    norm.weight = torch.nn.Parameter(distribute_tensor(norm.weight.detach(), mesh, [Replicate()]))
    tridal.kernelize(norm)
    sharded = distribute_tensor(x, mesh, [Shard(1)])
    with tridal.record_calls() as calls:
        y = norm(sharded)
    assert y.placements == (Shard(1),)
    assert [call.op for call in calls] == ["rms_norm"]
    torch.testing.assert_close(y.full_tensor(), expected)


def rank_main(rank: int, port: int, failures: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (2,))
    try:
        with tridal.use(device="interpreter"):
            check_sequence_parallel_norm(mesh)
            check_fsdp2(mesh, "kernelize first")
            check_fsdp2(mesh, "shard first")
    except BaseException:
        failures[rank] = traceback.format_exc()
    dist.destroy_process_group()


def test_sharded_models_compute_the_same_on_two_ranks() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with multiprocessing.Manager() as manager:
        failures = manager.dict()
        multiprocessing.set_forkserver_preload([__name__])
        multiprocessing.start_processes(rank_main, (port, failures), nprocs=2, start_method="forkserver")
        assert dict(failures) == {}, "\n".join(failures.values())
