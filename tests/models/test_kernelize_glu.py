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

NewGELU: Any = pytest.importorskip("transformers.activations").NewGELUActivation
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


def own(forward: Callable[..., Tensor], base: Any = Gated, *args: Any) -> Callable[[], Any]:
    """Returns a function that makes a module with another forward."""
    return lambda: type(f"Own{base.__name__}", (base,), {"forward": forward})(*args)


class Halves(Gated):
    """Has one layer for both halves. `sides` are those of gate and up."""

    sides = (0, 1)

    def __init__(self) -> None:
        super().__init__(torch.nn.GELU())
        del self.w1, self.w3
        self.both = torch.nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        halves = self.both(x).chunk(2, -1)
        return self.w2(self.act(halves[self.sides[0]]) * halves[self.sides[1]])


def wide(module: Any, x: Tensor) -> Tensor:
    """Computes the product in float32."""
    gate, up = module.w1(x), module.w3(x)
    if x.dtype.itemsize < 4:
        return module.w2((module.act(gate.float()) * up.float()).to(x.dtype))  # type: ignore[no-any-return]
    return module.w2(module.act(gate) * up)  # type: ignore[no-any-return]


def always_wide(module: Any, x: Tensor) -> Tensor:
    """Computes the product in float32, also for float64."""
    return module.w2((module.act(module.w1(x).float()) * module.w3(x).float()).to(x.dtype))  # type: ignore[no-any-return]


class Limited(Gated):
    """Limits gate and up, as DeepSeek-V4 does."""

    def __init__(self) -> None:
        super().__init__()
        self.swiglu_limit = 0.5

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w1(x).clamp(max=self.swiglu_limit), self.w3(x).clamp(-self.swiglu_limit, self.swiglu_limit)
        return self.w2(self.act(gate) * up)


def with_layer(module: Any, x: Tensor, layer: int | None = None) -> Tensor:
    """Takes three dims, and an index that is not given."""
    batch, length, _ = x.shape
    product = module.act(module.w1(x)) * module.w3(x)
    return module.w2(product.view(batch, length, -1) if layer is None else product[layer])  # type: ignore[no-any-return]


def functional_silu(module: Any, x: Tensor) -> Tensor:
    return module.w2(functional.silu(module.w1(x)) * module.w3(x))  # type: ignore[no-any-return]


class Dropped(Gated):
    """Drops elements of the product, such as T5."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(self.dropout(self.act(self.w1(x)) * self.w3(x)))


class GEGLU(torch.nn.Module):
    """Returns the product, as that of diffusers does."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = torch.nn.Linear(8, 16)

    def gelu(self, gate: Tensor) -> Tensor:
        return functional.gelu(gate)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        x, gate = self.proj(x).chunk(2, dim=-1)
        return x * self.gelu(gate)


class PlainSwiGLU(torch.nn.Module):
    """Has no layer, as that of diffusers' Flux 2."""

    def __init__(self) -> None:
        super().__init__()
        self.act = torch.nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return self.act(gate) * up


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


@pytest.mark.parametrize(
    ("make", "replaced_by"),
    [
        (Gated, SWIGLU), (own(wide), "tridal.swiglu"), (own(functional_silu), SWIGLU), (Experts, SWIGLU),
        (lambda: Gated(torch.nn.GELU("tanh")), "tridal.geglu, approximate='tanh', casting='transformers'"),
        (Halves, "tridal.geglu, approximate='none', casting='transformers'"),
        (type("Exchanged", (Halves,), {"sides": (1, 0)}), "tridal.geglu, approximate='none', casting='transformers'"),
        (own(always_wide), "tridal.swiglu"), (own(with_layer), SWIGLU),
        (Limited, "tridal.swiglu, limit=0.5, casting='transformers'"), (PlainSwiGLU, SWIGLU),
        (GEGLU, "tridal.geglu, approximate='none', casting='transformers'"),
        (lambda: Gated(NewGELU()), "tridal.geglu, approximate='tanh', casting='transformers'"),
    ],
)  # fmt: skip
def test_replaced_modules_compute_the_same(device: torch.device, make: Callable[[], Any], replaced_by: str) -> None:
    torch.manual_seed(0)
    model = make().to(device)
    x = torch.randn(2, 3, 8, device=device, requires_grad=True)
    expected = model(x)
    gradients = torch.autograd.grad(expected.sum(), (x, *model.parameters()))
    entry = tridal.kernelize(model).entries[0]  # an activation may be another one
    assert (entry.name, entry.replaced_by) == ("", replaced_by)
    op = replaced_by.partition(".")[2].partition(",")[0]
    for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)) if make is Gated else model):
        assert ops_of(lambda other=other: other(x)) == {op}
        y = other(x)
        assert_close(y, expected)
        assert_close(torch.autograd.grad(y.sum(), (x, *other.parameters())), gradients)
    tridal.models.restore(model)
    assert ops_of(lambda: model(x)) == set()


def interleaved(module: Any, gate_up: Tensor) -> Tensor:
    """Has gate and up in turn, such as those of gpt-oss."""
    return module.act(gate_up[..., ::2]) * gate_up[..., 1::2]  # type: ignore[no-any-return]


PARTS = "beside its layers, and a gated MLP has one activation without parameters"
NEAREST = "it differs from the nearest product, tridal."


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Gated(torch.nn.ReLU()), NEAREST),
        (own(lambda m, x: m.w2(m.act(m.w1(x)) * m.w3(x) * 1.001)), f"{NEAREST}swiglu, by"),
        (own(lambda m, x: m.w2(m.act(m.w1(x)) * m.w3(x.detach()))), f"{NEAREST}swiglu, by"),
        (own(lambda m, x: m.dropout(m.w2(m.act(m.w1(x)) * m.w3(x))), Dropped), NEAREST),
        (own(lambda m, x, layer=0: m.w2(x)), "its forward takes (x, layer), and a gated MLP takes one tensor"),
        (own(lambda m, x: functional.glu(m.proj(x)), GEGLU), f"{NEAREST}swiglu, by"),
        (lambda: Gated(torch.nn.PReLU()), f"it has the modules act {PARTS}"),
        (type("InterleavedExperts", (Experts,), {"_apply_gate": interleaved}), NEAREST),
        (type("UngatedExperts", (Experts,), {"has_gate": False}), "tridal computes the product of experts whose class"),
    ],
)  # fmt: skip
def test_other_modules_are_left_with_the_reason(make: Callable[[], Any], reason: str) -> None:
    (entry,) = tridal.kernelize(make()).entries
    assert entry.replaced_by is None
    assert str(entry.reason).startswith(reason)


def test_model_with_layers_of_these_sizes_and_blocks_is_no_gated_mlp() -> None:
    model = Gated()
    model.blocks = torch.nn.ModuleList([torch.nn.Linear(8, 8)])
    assert tridal.kernelize(model).entries == ()


def test_layer_with_an_activation_is_no_gated_mlp() -> None:
    layer = own(lambda m, x: functional.silu(m.proj(x)), GEGLU)()
    type(layer).__name__ = "Intermediate"
    assert tridal.kernelize(layer).entries == ()


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
    cast = own(lambda m, x: m.w2((m.act(m.w1(x)) * m.w3(x)).to(m.w2.weight.dtype)))
    model, x = cast().to(device, torch.bfloat16), torch.randn(4, 8, device=device, dtype=torch.bfloat16)
    tridal.kernelize(model)
    assert ops_of(lambda: model(x)) == {"swiglu"}
    model.w2.float()
    assert ops_of(lambda: model(x)) == set()
    assert model(x).dtype is torch.float32


def test_experts_of_transformers_give_the_same_step(device: torch.device) -> None:
    for implementation, products in (("grouped_mm", {"swiglu", "swiglu_backward"}), ("eager", set())):
        model = build("Mixtral").to(device)
        model.set_experts_implementation(implementation)
        expected = step(model)
        report = tridal.kernelize(model, skip=["", "*norm", "*.self_attn", "*.gate"])
        reasons = {entry.class_name: str(entry.reason) for entry in report.entries}
        check_step(model, expected, products)
    assert reasons["MixtralExperts"] == "its experts_implementation is 'eager', which does not call _apply_gate"
