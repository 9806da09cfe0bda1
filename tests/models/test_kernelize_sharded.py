"""Kernelized models whose parameters are sharded over two ranks: FSDP2, and sequence parallel norms."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("torch.distributed.tensor")
pytest.importorskip("transformers")
if not torch.distributed.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import tridal
from model_helpers import assert_same_step, build, ops_of, step
from ranks import backends, failures_of
from torch_versions import averages_on_gloo

OPS = {
    "rms_norm", "rms_norm_backward", "swiglu", "swiglu_backward", "rotary_embedding", "rotary_embedding_backward",
    "cross_entropy_with_gradient",
}  # fmt: skip


def shard(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for module in (*model.model.layers, model.lm_head, model):
        fully_shard(module, mesh=mesh)


def check_fsdp2(mesh: Any, kernelize_first: bool) -> None:
    def full_step() -> Any:
        outputs, gradients = step(model)
        got.append((outputs, {name: grad.full_tensor() for name, grad in gradients.items()}))

    expected, got, model = step(build("Llama")), [], build("Llama")
    report = tridal.kernelize(model, fused_loss=True) if kernelize_first else None
    shard(model, mesh)
    report = report or tridal.kernelize(model, fused_loss=True)
    assert ops_of(full_step) == OPS, report
    assert got[0][0].logits is None
    if kernelize_first:
        report.restore()
        assert ops_of(full_step) == set()
    for found in got:
        assert_same_step(found, expected)


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


def check_all(mesh: Any) -> None:
    check_sequence_parallel_norm(mesh)
    for kernelize_first in (True, False):
        check_fsdp2(mesh, kernelize_first)


@pytest.mark.slow("it starts two ranks")
@averages_on_gloo
@pytest.mark.parametrize("backend_name", backends())
def test_sharded_models_compute_the_same_on_two_ranks(backend_name: str) -> None:
    failures = failures_of({"sharded models": check_all}, 2, backend_name)
    assert not failures, "\n".join(failures.values())
