"""Activations that take several launches: which are replaced by torch's function, and what they keep."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch.nn import functional

import tridal

transformers_activations: Any = pytest.importorskip("transformers.activations")
TANH = "torch.nn.functional.gelu, approximate='tanh'"


class Block(torch.nn.Module):
    """A block with one activation."""

    def __init__(self, act: torch.nn.Module) -> None:
        super().__init__()
        self.act = act


class Own(torch.nn.Module):
    """An activation that is a function of its input."""

    def __init__(self, compute: Any) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.compute(input)  # type: ignore[no-any-return]


OwnGelu = type("OwnGelu", (Own,), {})
OF_TRANSFORMERS = {
    "NewGELUActivation": TANH, "FastGELUActivation": TANH, "AccurateGELUActivation": TANH,
    "QuickGELUActivation": "it differs from the nearest function, ", "GELUActivation": None, "SiLUActivation": None,
}  # fmt: skip
CASES = {
    **{name: (getattr(transformers_activations, name)(), found) for name, found in OF_TRANSFORMERS.items()},
    "erf in Python": (transformers_activations.GELUActivation(use_gelu_python=True), "torch.nn.functional.gelu"),
    "tanh in Python": (transformers_activations.GELUTanh(use_gelu_tanh_python=True), TANH),
    "torch": (torch.nn.GELU(), None),
    "shifted": (
        OwnGelu(lambda x: functional.gelu(x) + 1e-5),
        "it differs from the nearest function, ",
    ),
    "gradient": (OwnGelu(lambda x: x * torch.sigmoid(x.detach())), "it differs from the nearest function, "),
    "shape": (
        OwnGelu(lambda x: torch.cat((x, functional.gelu(x)))),
        "this form of activation is not supported: the comparison raised TypeError: it returned ",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_activations_of_several_operations_are_replaced_or_have_a_reason(name: str) -> None:
    act, found = CASES[name]
    entries = tridal.kernelize(Block(act)).entries
    assert len(entries) == (found is not None)
    assert all(str(entry.replaced_by or entry.reason).startswith(str(found)) for entry in entries)
    assert all((entry.replaced_by is None) is str(found).startswith(("it", "this")) for entry in entries)


def test_a_replaced_activation_saves_its_input_only(device: torch.device) -> None:
    act = transformers_activations.NewGELUActivation()
    x, saved = torch.randn(5, 7, device=device, requires_grad=True), []
    expected = act(x)
    tridal.kernelize(Block(act))
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda tensor: tensor):
        y = act(x)
    assert len(saved) == 1
    torch.testing.assert_close(y, expected)
    duplicate = pickle.loads(pickle.dumps(act))
    assert type(duplicate) is type(act)
    assert torch.equal(duplicate(x), act(x))
    tridal.models.restore(act)
    assert torch.equal(act(x), expected)
