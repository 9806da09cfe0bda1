"""tridal.nn: the modules equal those of torch.nn, share their state dicts, and tridal computes them."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal

MODULES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "softmax": ("Softmax", (0,), {}),
    "log_softmax": ("LogSoftmax", (2,), {}),
    "rms_norm with eps": ("RMSNorm", ((3, 5),), {"eps": 0.1}),
    "layer_norm without a bias": ("LayerNorm", (5,), {"bias": False}),
    "layer_norm without a weight": ("LayerNorm", ((3, 5),), {"elementwise_affine": False}),
}
"""The class, its arguments and its options."""


def gradients(module: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(module(x).sin().sum(), [x, *module.parameters()])


@pytest.mark.parametrize(("name", "arguments", "options"), MODULES.values(), ids=MODULES)
def test_modules_their_copies_and_their_gradients_equal_torch(
    device: torch.device, name: str, arguments: Any, options: dict[str, Any]
) -> None:
    torch.compiler.reset()
    ours, theirs = (getattr(library, name)(*arguments, **options).to(device) for library in (tridal.nn, torch.nn))
    assert isinstance(ours, type(theirs))
    assert repr(ours) == repr(theirs)
    names = list(inspect.signature(type(theirs)).parameters)
    assert list(inspect.signature(type(ours)).parameters)[: len(names)] == names
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 5, device=device, dtype=options.get("dtype"), requires_grad=True)
    assert type(ours(x).grad_fn).__name__ == "CallNodeBackward", "a kernel computed it"
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for module in (ours, copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), compiled):
        assert module is compiled or type(module) is type(ours)
        assert_close(module(x), theirs(x))
        assert_close(gradients(module, x), gradients(theirs, x))
    if "Norm" in name:
        y, total = ours(x, x)
        assert_close((y, total), (theirs(2 * x), 2 * x))


@pytest.mark.parametrize(("name", "shape"), [("Softmax", (3, 5)), ("LogSoftmax", (2, 3, 5))])
def test_missing_dim_warns_and_equals_torch(name: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    with pytest.warns(UserWarning, match="dim="):
        expected = getattr(torch.nn, name)()(x)
    with pytest.warns(UserWarning, match="deprecated: pass dim=") as warned:
        assert_close(getattr(tridal.nn, name)()(x), expected)
    assert "module.py" in warned[0].filename, "the place of the call in torch.nn.Module"
    compiled = torch.compile(getattr(tridal.nn, name)(None), fullgraph=True, backend="eager")
    assert_close(compiled(x), expected)


@pytest.mark.parametrize("outputs", [(), (3,)])
def test_linear_module_equals_torch(device: torch.device, outputs: tuple[int, ...]) -> None:
    x = torch.randn(4, 5, device=device)
    target = torch.randint(7, (4, *outputs), device=device)
    module = tridal.nn.LinearCrossEntropyLoss(5, 7, out_features=outputs, bias=True, device=device)
    expected = tridal.linear_cross_entropy(
        x, module.linear.weight.view(7, *outputs, 5), target, linear_bias=module.linear.bias.view(7, *outputs)
    )
    assert_close(module(x, target), expected)
    if hasattr(torch.nn, "LinearCrossEntropyLoss"):
        theirs = torch.nn.LinearCrossEntropyLoss(5, 7, out_features=outputs, bias=True, device=device)
        theirs.load_state_dict(module.state_dict())
        assert isinstance(module, torch.nn.LinearCrossEntropyLoss)
        assert_close(theirs(x, target), expected)
    with pytest.raises(RuntimeError, match=r"weight must have the shape \(7,\)"):
        tridal.nn.LinearCrossEntropyLoss(5, 7, weight=torch.ones(3))


def test_modules_have_the_options_of_the_functions(device: torch.device) -> None:
    norm = tridal.nn.RMSNorm(6, weight_offset=1.0, casting="gemma", device=device)
    assert repr(norm) == "RMSNorm((6,), eps=None, elementwise_affine=True, weight_offset=1, casting='gemma')"
    x = torch.randn(4, 6, device=device)
    assert_close(norm(x), torch.nn.RMSNorm(6, device=device)(x))
    norm = tridal.nn.LayerNorm(6, weight_offset=1.0, device=device)
    assert repr(norm).endswith(", weight_offset=1)")
    assert_close(norm(x), torch.nn.LayerNorm(6, device=device)(x))
    target, weight = torch.tensor([1, -100, 5, 0], device=device), torch.rand(6, device=device)
    loss = tridal.nn.CrossEntropyLoss(weight, label_smoothing=0.1, z_loss=0.1)
    assert_close(loss(x, target), tridal.cross_entropy(x, target, weight, label_smoothing=0.1, z_loss=0.1))
    torch.nn.CrossEntropyLoss(weight, label_smoothing=0.1).load_state_dict(loss.state_dict())
    assert repr(copy.deepcopy(loss)) == "CrossEntropyLoss(z_loss=0.1)"
