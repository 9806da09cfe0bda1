"""Activations that take several launches: which are replaced by torch's function, and what they keep."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.nn import functional

import tridal

transformers_activations: Any = pytest.importorskip("transformers.activations")
TANH = "torch.nn.functional.gelu, approximate='tanh'"


class ShiftedGelu(torch.nn.Module):
    """Looks like an activation, and computes something else by an error of 1e-5."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.gelu(input) + 1e-5


class WrongGradientSilu(torch.nn.Module):
    """Has the results of SiLU, and other gradients."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input * torch.sigmoid(input.detach())


class DoublingGelu(torch.nn.Module):
    """Returns two numbers for each one."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.cat((input, functional.gelu(input)))


class Block(torch.nn.Module):
    """A block with one activation."""

    def __init__(self, act: torch.nn.Module) -> None:
        super().__init__()
        self.act = act


def entry_of(act: torch.nn.Module) -> Any:
    entries = tridal.kernelize(Block(act)).entries
    return entries[0] if entries else None


@pytest.mark.parametrize("name", ["NewGELUActivation", "FastGELUActivation", "AccurateGELUActivation"])
def test_activations_of_several_operations_are_replaced(name: str) -> None:
    assert entry_of(getattr(transformers_activations, name)()).replaced_by == TANH


def test_activations_of_one_operation_are_no_candidates() -> None:
    for act in (transformers_activations.GELUActivation(), transformers_activations.SiLUActivation(), torch.nn.GELU()):
        assert entry_of(act) is None


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (ShiftedGelu(), "it differs from the nearest function, torch.nn.functional.gelu, by "),
        (WrongGradientSilu(), "it differs from the nearest function, "),
        (DoublingGelu(), "this form of activation is not supported: the comparison raised TypeError: it returned "),
        (transformers_activations.QuickGELUActivation(), "it differs from the nearest function, "),
    ],
    ids=["shifted", "gradient", "shape", "quick"],
)
def test_other_functions_are_left_unchanged(act: torch.nn.Module, reason: str) -> None:
    entry = entry_of(act)
    assert entry.replaced_by is None
    assert entry.reason.startswith(reason)


def test_python_forms_of_transformers_are_compared_by_their_attributes() -> None:
    erf = transformers_activations.GELUActivation(use_gelu_python=True)
    tanh = transformers_activations.GELUTanh(use_gelu_tanh_python=True)
    assert [entry_of(act).replaced_by for act in (erf, tanh)] == ["torch.nn.functional.gelu", TANH]


def test_a_replaced_activation_saves_its_input_only(device: torch.device) -> None:
    act = transformers_activations.NewGELUActivation()
    x = torch.randn(5, 7, device=device, requires_grad=True)

    def saved_tensors() -> int:
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda tensor: tensor):
            act(x)
        return len(saved)

    before, expected = saved_tensors(), act(x)
    report = tridal.kernelize(Block(act))
    assert (before > 1, saved_tensors()) == (True, 1)
    torch.testing.assert_close(act(x), expected)
    for duplicate in (copy.deepcopy(act), pickle.loads(pickle.dumps(act))):
        assert type(duplicate) is type(act)
        torch.testing.assert_close(duplicate(x), act(x), rtol=0, atol=0)
    report.restore()
    assert type(act) is transformers_activations.NewGELUActivation
    assert torch.equal(act(x), expected)


def test_a_compiler_gets_the_operations_of_the_class(device: torch.device) -> None:
    act = transformers_activations.NewGELUActivation()
    tridal.kernelize(Block(act))
    names: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        names.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    x = torch.randn(3, 5, device=device)
    torch.testing.assert_close(torch.compile(act, backend=backend, fullgraph=True)(x), act(x))
    assert any("tanh" in name for name in names)
    assert not any("gelu" in name for name in names)


def test_an_activation_computes_as_before_on_a_device_without_a_backend() -> None:
    act, x = transformers_activations.NewGELUActivation(), torch.randn(3, 5)
    expected = act(x)
    tridal.kernelize(Block(act))
    with tridal.use(device="auto"):
        assert torch.equal(act(x), expected), "torch's function rounds once"
