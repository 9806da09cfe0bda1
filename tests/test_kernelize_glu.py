"""Gated MLPs: which are replaced, which are left with the difference, and what a replaced one keeps."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import tridal
from model_helpers import HEADS, SMALL, build, ops_of, step, transformers

Tensor = torch.Tensor


class Gated(torch.nn.Module):
    """A gated MLP like that of LLaMA. The layers have other names, and hidden and intermediate sizes are equal."""

    def __init__(self, act: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = (torch.nn.Linear(8, 8) for _ in range(3))
        self.act = act or torch.nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(self.w3(x) * self.act(self.w1(x)))


class Halves(torch.nn.Module):
    """A gated MLP with one layer for both halves."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.down, self.act = torch.nn.Linear(8, 24), torch.nn.Linear(12, 8), torch.nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.both(x).chunk(2, -1)
        return self.down(self.act(gate) * up)


class Exchanged(Halves):
    """The gate is the second half."""

    def forward(self, x: Tensor) -> Tensor:
        up, gate = self.both(x).chunk(2, -1)
        return self.down(self.act(gate) * up)


class Wide(Gated):
    """Computes the product in float32."""

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w1(x), self.w3(x)
        if x.dtype.itemsize < 4:
            return self.w2((self.act(gate.float()) * up.float()).to(x.dtype))
        return self.w2(self.act(gate) * up)


class Scaled(Gated):
    def forward(self, x: Tensor) -> Tensor:
        return self.w2(self.act(self.w1(x)) * self.w3(x) * 1.001)


class WrongGradient(Gated):
    def forward(self, x: Tensor) -> Tensor:
        return self.w2(self.act(self.w1(x)) * self.w3(x.detach()))


class Functional(Gated):
    """Calls a function as its activation."""

    def __init__(self) -> None:
        super().__init__()
        del self.act

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Dropped(Gated):
    """Drops elements of the product, such as T5."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(self.dropout(self.act(self.w1(x)) * self.w3(x)))


class DroppedAfter(Dropped):
    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.w2(self.act(self.w1(x)) * self.w3(x)))


class TwoLayers(torch.nn.Module):
    """An MLP without a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.act = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8), torch.nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


@pytest.mark.parametrize(
    ("make", "replaced_by"),
    [
        (Gated, "tridal.swiglu, casting='transformers'"), (Wide, "tridal.swiglu"),
        (lambda: Gated(torch.nn.GELU("tanh")), "tridal.geglu, approximate='tanh', casting='transformers'"),
        (Halves, "tridal.geglu, approximate='none', casting='transformers'"),
        (Functional, "tridal.swiglu, casting='transformers'"),
    ],
)  # fmt: skip
def test_replaced_mlps_compute_the_same(device: torch.device, make: Callable[[], Any], replaced_by: str) -> None:
    model = make().to(device)
    x = torch.randn(4, 3, 8, device=device, requires_grad=True)
    expected = model(x)
    gradients = torch.autograd.grad(expected.sum(), (x, *model.parameters()))
    (entry,) = tridal.kernelize(model).entries
    assert entry.replaced_by == replaced_by
    op = replaced_by.partition(".")[2].partition(",")[0]
    for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)) if make is Gated else model):
        assert ops_of(lambda other=other: other(x)) == {op}
        y = other(x)
        assert_close(y, expected)
        assert_close(torch.autograd.grad(y.sum(), (x, *other.parameters())), gradients)
    tridal.models.restore(model)
    assert ops_of(lambda: model(x)) == set()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Gated(torch.nn.ReLU()), "it differs from the nearest product, tridal"),
        (Scaled, "it differs from the nearest product, tridal.swiglu, by"),
        (WrongGradient, "it differs from the nearest product, tridal.swiglu, by"),
        (Exchanged, "it differs from the nearest product, tridal."),
        (DroppedAfter, "it differs from the nearest product, tridal."),
    ],
)
def test_other_mlps_are_left_with_the_difference(make: Callable[[], Any], reason: str) -> None:
    (entry,) = tridal.kernelize(make()).entries
    assert entry.replaced_by is None
    assert str(entry.reason).startswith(reason)


def test_dropout_of_an_mlp_in_evaluation_mode_is_kept(device: torch.device) -> None:
    """`from_pretrained` returns models in evaluation mode."""
    config = transformers.SeedOssConfig(**SMALL, **HEADS, residual_dropout=0.5)
    mlp = transformers.SeedOssForCausalLM(config).to(device).eval().model.layers[0].mlp
    (entry,) = tridal.kernelize(mlp).entries
    assert entry.reason == "it computes something else in training than in evaluation"
    mlp.train()
    share = float((mlp(torch.randn(64, 32, device=device)) == 0).float().mean())
    assert 0.4 < share < 0.6


def test_mlp_without_a_gate_is_no_candidate() -> None:
    assert tridal.kernelize(TwoLayers()).entries == ()


def test_mlp_with_more_than_the_parts_of_a_gated_mlp_is_left_with_the_reason() -> None:
    class Normed(Gated):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(8)

    class Shifted(Gated):
        def __init__(self) -> None:
            super().__init__()
            self.shift = torch.nn.Parameter(torch.ones(8))

    class Indexed(Gated):
        def forward(self, x: Tensor, layer: int = 0) -> Tensor:
            return super().forward(x)

    class NoDownGatedMLP(Gated):
        def __init__(self) -> None:
            super().__init__()
            del self.w2

    modules = Gated(torch.nn.PReLU()), Normed(), Shifted(), Indexed(), NoDownGatedMLP()
    parts = "beside its layers, and a gated MLP has one activation without parameters"
    entries = tridal.kernelize(torch.nn.Sequential(*modules)).entries
    assert {entry.name: entry.reason for entry in entries if "." not in entry.name} == {
        "0": f"it has the modules act {parts}",
        "1": f"it has the modules act, norm {parts}",
        "2": "it has parameters of its own (shift), and a gated MLP has only those of its layers",
        "3": "its forward takes (x, layer), and a gated MLP takes one tensor",
        "4": "it has no linear layers with the sizes of gate, up and down",
    }


def test_dropout_of_the_product_is_called_as_before(device: torch.device) -> None:
    model, x = Dropped().to(device), torch.randn(4, 8, device=device)

    def call() -> Tensor:
        torch.manual_seed(0)
        return model(x)

    expected = [call(), model.eval()(x)]
    model.train()
    assert tridal.kernelize(model).entries[0].replaced_by == "tridal.swiglu, casting='transformers'"
    assert ops_of(call) == {"swiglu"}
    assert_close([call(), model.eval()(x)], expected)


def test_class_computes_if_the_last_layer_has_another_dtype(device: torch.device) -> None:
    """Such as that of T5, which transformers keeps in float32."""

    class Casting(Gated):
        def forward(self, x: Tensor) -> Tensor:
            return self.w2((self.act(self.w1(x)) * self.w3(x)).to(self.w2.weight.dtype))

    model, x = Casting().to(device, torch.bfloat16), torch.randn(4, 8, device=device, dtype=torch.bfloat16)
    tridal.kernelize(model)
    assert ops_of(lambda: model(x)) == {"swiglu"}
    model.w2.float()
    assert ops_of(lambda: model(x)) == set()
    assert model(x).dtype is torch.float32


def test_another_forward_of_the_activation_computes(device: torch.device) -> None:
    model, x = Gated().to(device), torch.randn(2, 8, device=device)
    tridal.kernelize(model)
    assert ops_of(lambda: model(x)) == {"swiglu"}
    model.act.forward = functional.relu
    assert ops_of(lambda: model(x)) == set()
    assert_close(model(x), model.w2(functional.relu(model.w1(x)) * model.w3(x)))


def test_hook_or_another_activation_makes_the_class_compute(device: torch.device) -> None:
    model, x = Gated().to(device), torch.randn(2, 8, device=device)
    tridal.kernelize(model)
    seen: list[Tensor] = []
    handle = model.act.register_forward_hook(lambda module, args, y: seen.append(y))
    assert ops_of(lambda: model(x)) == set()
    assert len(seen) == 1
    handle.remove()
    assert ops_of(lambda: model(x)) == {"swiglu"}
    model.act = torch.nn.ReLU()
    assert ops_of(lambda: model(x)) == set()
    assert_close(model(x), model.w2(functional.relu(model.w1(x)) * model.w3(x)))


def test_layers_are_called_with_their_hooks(device: torch.device) -> None:
    model, calls = Gated().to(device), []
    for layer in (model.w1, model.w2, model.w3):
        layer.register_forward_hook(lambda *_: calls.append(1))
    tridal.kernelize(model)
    model(torch.randn(2, 8, device=device))
    assert len(calls) == 3


@pytest.mark.parametrize("name", ["Llama", "Phi3", "Gemma"])
def test_skipped_mlps_are_left(device: torch.device, name: str) -> None:
    model = build(name).to(device)
    tridal.kernelize(model, skip="*.mlp")
    assert not {"swiglu", "geglu"} & ops_of(lambda: step(model))
