"""Gated MLPs and experts: which are replaced, which are left with the reason, and what a replaced one keeps."""

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
from model_helpers import build, check_step, ops_of, step

Tensor = torch.Tensor
SWIGLU = "tridal.swiglu, casting='transformers'"


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


def own(forward: Callable[[Any, Tensor], Tensor], base: Any = Gated) -> Any:
    """Returns a module with another forward."""
    return type("Own", (base,), {"forward": forward})()


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


class Experts(torch.nn.Module):
    """Multiplies with the weights of two experts, as transformers does."""

    has_gate = True

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.randn(2, size, 2 * size))
        self.down_proj = torch.nn.Parameter(torch.randn(2, size, size))
        self.act = torch.nn.SiLU()

    def _apply_gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return self.act(gate) * up

    def forward(self, x: Tensor) -> Tensor:
        return self._apply_gate(x @ self.gate_up_proj) @ self.down_proj


class InterleavedExperts(Experts):
    """Has gate and up in turn, such as those of gpt-oss."""

    def _apply_gate(self, gate_up: Tensor) -> Tensor:
        return self.act(gate_up[..., ::2]) * gate_up[..., 1::2]


class UngatedExperts(Experts):
    has_gate = False


@pytest.mark.parametrize(
    ("make", "replaced_by"),
    [
        (Gated, SWIGLU), (Wide, "tridal.swiglu"), (Functional, SWIGLU), (Experts, SWIGLU),
        (lambda: Gated(torch.nn.GELU("tanh")), "tridal.geglu, approximate='tanh', casting='transformers'"),
        (Halves, "tridal.geglu, approximate='none', casting='transformers'"),
    ],
)  # fmt: skip
def test_replaced_modules_compute_the_same(device: torch.device, make: Callable[[], Any], replaced_by: str) -> None:
    torch.manual_seed(0)
    model = make().to(device)
    x = torch.randn(2, 3, 8, device=device, requires_grad=True)
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


NEAREST = "it differs from the nearest product, tridal."


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Gated(torch.nn.ReLU()), NEAREST), (Exchanged, NEAREST), (InterleavedExperts, NEAREST),
        (lambda: own(lambda m, x: m.w2(m.act(m.w1(x)) * m.w3(x) * 1.001)), f"{NEAREST}swiglu, by"),
        (lambda: own(lambda m, x: m.w2(m.act(m.w1(x)) * m.w3(x.detach()))), f"{NEAREST}swiglu, by"),
        (lambda: own(lambda m, x: m.dropout(m.w2(m.act(m.w1(x)) * m.w3(x))), Dropped), NEAREST),
        (UngatedExperts, "tridal computes the product of experts whose class has the method _apply_gate"),
    ],
)  # fmt: skip
def test_other_modules_are_left_with_the_reason(make: Callable[[], Any], reason: str) -> None:
    (entry,) = tridal.kernelize(make()).entries
    assert entry.replaced_by is None
    assert str(entry.reason).startswith(reason)


def test_mlp_with_more_than_the_parts_of_a_gated_mlp_is_left_with_the_reason() -> None:
    class Normed(Gated):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(8)

    class Indexed(Gated):
        def forward(self, x: Tensor, layer: int = 0) -> Tensor:
            return super().forward(x)

    modules = Gated(torch.nn.PReLU()), Normed(), Indexed()
    parts = "beside its layers, and a gated MLP has one activation without parameters"
    entries = tridal.kernelize(torch.nn.Sequential(*modules)).entries
    assert {entry.name: entry.reason for entry in entries if "." not in entry.name} == {
        "0": f"it has the modules act {parts}",
        "1": f"it has the modules act, norm {parts}",
        "2": "its forward takes (x, layer), and a gated MLP takes one tensor",
    }


def test_dropout_of_the_product_is_called_as_before(device: torch.device) -> None:
    model, x = Dropped().to(device), torch.randn(4, 8, device=device)

    def call() -> Tensor:
        torch.manual_seed(0)
        return model(x)

    expected = [call(), model.eval()(x)]
    model.train()
    assert tridal.kernelize(model).entries[0].replaced_by == SWIGLU
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


@pytest.mark.parametrize("make", [Gated, Experts])
def test_class_computes_if_its_activation_changes_or_has_hooks(device: torch.device, make: Callable[[], Any]) -> None:
    model, x = make().to(device), torch.randn(2, 3, 8, device=device)
    plain, seen = copy.deepcopy(model), []
    tridal.kernelize(model)
    handle = model.act.register_forward_hook(lambda module, args, y: seen.append(y))
    assert ops_of(lambda: model(x)) == set()
    assert len(seen) == 1
    handle.remove()
    assert ops_of(lambda: model(x)) == {"swiglu"}
    plain.act = torch.nn.ReLU()
    for change in (lambda: setattr(model.act, "forward", functional.relu), lambda: setattr(model, "act", plain.act)):
        change()
        assert ops_of(lambda: assert_close(model(x), plain(x), rtol=0, atol=0)) == set()


def test_experts_of_transformers_give_the_same_step(device: torch.device) -> None:
    for implementation, products in (("grouped_mm", {"swiglu", "swiglu_backward"}), ("eager", set())):
        model = build("Mixtral").to(device)
        model.set_experts_implementation(implementation)
        expected = step(model)
        report = tridal.kernelize(model, skip=["", "*norm", "*.self_attn"])
        reasons = {entry.class_name: str(entry.reason) for entry in report.entries}
        check_step(model, expected, products)
    assert reasons["MixtralExperts"] == "its experts_implementation is 'eager', which does not call _apply_gate"
