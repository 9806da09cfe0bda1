"""Models whose parameters are sharded over two ranks: FSDP2 with kernelize and loss heads, sequence parallel norms."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torch.distributed.tensor")
pytest.importorskip("transformers")
if not torch.distributed.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import tridal
from model_helpers import assert_same_step, batch, build, ops_of, step
from ranks import backends, failures_of
from torch_versions import averages_on_gloo

Tensor = torch.Tensor
EXAMPLES = Path(__file__).parents[2] / "examples"
OPS = {
    "rms_norm", "rms_norm_backward", "swiglu", "swiglu_backward", "rotary_embedding", "rotary_embedding_backward",
    "cross_entropy_with_gradient",
}  # fmt: skip


def shard(model: Any, mesh: Any) -> None:
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


class Head(torch.nn.Module):
    """A layer and a head, whose loss a function computes from the weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 13, bias=False)

    def forward(self, x: Tensor, loss: Any) -> Any:
        return loss(self.layer(x), self.head)


def by_torch(x: Tensor, head: Any, target: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(head(x), target)


def by_linear_cross_entropy(x: Tensor, head: Any, target: Tensor) -> Tensor:
    return tridal.linear_cross_entropy(x, head.weight, target)


def by_token_log_probs(x: Tensor, head: Any, target: Tensor) -> Tensor:
    return -tridal.token_log_probs(x, head.weight, target).mean()


def check_losses_of_a_head(mesh: Any) -> None:
    """The ranks have other rows. A sharded weight is refused, and the gradient of a gathered one is averaged."""
    whole, rows = Head(), [(torch.randn(6, 8), torch.randint(13, (6,))) for _ in range(2)]
    for x, target in rows:
        whole(x, lambda y, head, target=target: by_torch(y, head, target) / 2).backward()
    x, target = rows[mesh.get_rank()]
    for loss in (by_linear_cross_entropy, by_token_log_probs):
        for has_unit in (False, True):
            model = Head()
            for module in (model.head, model) if has_unit else (model,):
                fully_shard(module, mesh=mesh)
            if has_unit:
                with pytest.raises(TypeError, match=r"input must be a DTensor, because .* first call unshard\(\)"):
                    model(x, lambda y, head, loss=loss: loss(y, head, target))
                model.head.unshard()
            model(x, lambda y, head, loss=loss: loss(y, head, target)).backward()
            for (name, sharded), exact in zip(model.named_parameters(), whole.parameters(), strict=True):
                assert sharded.grad is not None, name
                torch.testing.assert_close(sharded.grad.full_tensor(), exact.grad)  # type: ignore[attr-defined]


def check_loss_head_of_the_examples(mesh: Any) -> None:
    add_loss_head = runpy.run_path(str(EXAMPLES / "loss_head.py"))["add_loss_head"]
    outputs, expected = step(build("Llama"))
    model = build("Llama")
    shard(model, mesh)
    add_loss_head(model)
    found = model(**batch(torch.device("cpu")), fused_lm_head=True)
    found.loss.backward()
    torch.testing.assert_close(found.loss, outputs.loss)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad.full_tensor(), expected[name], rtol=1e-3, atol=1e-5)
    with torch.no_grad():
        model(**batch(torch.device("cpu")), fused_lm_head=True)
    assert model.lm_head.weight.device_mesh is mesh, "sharded again"


def check_all(mesh: Any) -> None:
    check_sequence_parallel_norm(mesh)
    check_losses_of_a_head(mesh)
    check_loss_head_of_the_examples(mesh)
    for kernelize_first in (True, False):
        check_fsdp2(mesh, kernelize_first)


@pytest.mark.slow("it starts two ranks")
@averages_on_gloo
@pytest.mark.parametrize("backend_name", backends())
def test_sharded_models_compute_the_same_on_two_ranks(backend_name: str) -> None:
    failures = failures_of({"sharded models": check_all}, 2, backend_name)
    assert not failures, "\n".join(failures.values())
