"""Experts of mixtures: which products are replaced, which are left with the reason, and what a replaced one keeps."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from model_helpers import build, check_step, ops_of, step
from torch_versions import compiles_transformers

Tensor = torch.Tensor
PRODUCT = "tridal.swiglu, casting='transformers'"


class Experts(torch.nn.Module):
    """Multiplies with the weights of two experts, as transformers does."""

    has_gate = True

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.randn(2, size, 2 * size))
        self.down_proj = torch.nn.Parameter(torch.randn(2, size, size))
        self.act_fn = torch.nn.SiLU()

    def _apply_gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return self.act_fn(gate) * up

    def forward(self, x: Tensor) -> Tensor:
        return self._apply_gate(x @ self.gate_up_proj) @ self.down_proj


class InterleavedExperts(Experts):
    """Has gate and up in turn, such as those of gpt-oss."""

    def _apply_gate(self, gate_up: Tensor) -> Tensor:
        return self.act_fn(gate_up[..., ::2]) * gate_up[..., 1::2]


class UngatedExperts(Experts):
    has_gate = False


def test_replaced_experts_compute_the_same(device: torch.device) -> None:
    torch.manual_seed(0)
    model, x = Experts().to(device), torch.randn(2, 5, 8, device=device, requires_grad=True)
    expected = model(x)
    gradients = torch.autograd.grad(expected.sum(), (x, *model.parameters()))
    report = tridal.kernelize(model)
    assert [entry.replaced_by for entry in report.entries] == [PRODUCT]
    for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert ops_of(lambda other=other: other(x)) == {"swiglu"}
        y = other(x)
        assert_close(y, expected)
        assert_close(torch.autograd.grad(y.sum(), (x, *other.parameters())), gradients)
    hook = model.act_fn.register_forward_hook(lambda *_: None)
    assert ops_of(lambda: model(x)) == set()
    hook.remove()
    report.restore()
    assert ops_of(lambda: model(x)) == set()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (InterleavedExperts, "it differs from the nearest product, tridal."),
        (UngatedExperts, "tridal computes the product of experts whose class has the method _apply_gate"),
    ],
)
def test_other_experts_are_left_with_the_reason(kind: Any, reason: str) -> None:
    (entry,) = tridal.kernelize(kind()).entries
    assert entry.replaced_by is None
    assert str(entry.reason).startswith(reason)


def test_experts_of_transformers_give_the_same_step(device: torch.device) -> None:
    for implementation, products in (("grouped_mm", {"swiglu", "swiglu_backward"}), ("eager", set())):
        model = build("Mixtral").to(device)
        model.set_experts_implementation(implementation)
        expected = step(model)
        report = tridal.kernelize(model, skip=["", "*norm", "*.self_attn"])
        reasons = {entry.class_name: str(entry.reason) for entry in report.entries}
        check_step(model, expected, products)
    assert reasons["MixtralExperts"] == "its experts_implementation is 'eager', which does not call _apply_gate"


@compiles_transformers
def test_compiled_experts_are_left_to_the_compiler(device: torch.device) -> None:
    model, x = Experts().to(device), torch.randn(2, 5, 8, device=device)
    expected = model(x)
    tridal.kernelize(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert ops_of(lambda: compiled(x)) == set()
    assert_close(compiled(x), expected)
