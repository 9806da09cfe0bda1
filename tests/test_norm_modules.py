"""tridal.nn.RMSNorm and LayerNorm: they equal torch's modules and share their state dicts."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal

NAMES = ["RMSNorm", "LayerNorm"]


def both(name: str, *arguments: Any, **options: Any) -> tuple[Any, Any]:
    return getattr(tridal.nn, name)(*arguments, **options), getattr(torch.nn, name)(*arguments, **options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "options", [{}, {"eps": 0.1}, {"elementwise_affine": False}, {"dtype": torch.float64}], ids=str
)
def test_modules_equal_torch(device: torch.device, name: str, options: dict[str, Any]) -> None:
    ours, theirs = (module.to(device) for module in both(name, (3, 5), **options))
    assert isinstance(ours, type(theirs))
    assert repr(ours) == repr(theirs)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 5, device=device, dtype=options.get("dtype"), requires_grad=True)
    assert_close(ours(x), theirs(x))
    gradients = [torch.autograd.grad(m(x).sin().sum(), [x, *m.parameters()]) for m in (ours, theirs)]
    assert_close(*gradients)
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert_close(copied(x), ours(x))


@pytest.mark.parametrize("name", NAMES)
def test_residual_returns_the_sum(device: torch.device, name: str) -> None:
    module = getattr(tridal.nn, name)(6).to(device)
    x, residual = torch.randn(2, 4, 6, device=device)
    y, total = module(x, residual)
    assert torch.equal(total, x + residual)
    assert_close(y, module(total))


def test_layer_norm_without_bias(device: torch.device) -> None:
    ours, theirs = (module.to(device) for module in both("LayerNorm", 6, bias=False))
    x = torch.randn(4, 6, device=device)
    assert ours.bias is None
    assert_close(ours(x), theirs(x))


def test_a_new_module_with_an_offset_scales_by_one(device: torch.device) -> None:
    module = tridal.nn.RMSNorm(6, weight_offset=1.0, casting="gemma", device=device)
    assert not module.weight.any()
    assert repr(module) == "RMSNorm((6,), eps=None, elementwise_affine=True, weight_offset=1, casting='gemma')"
    x = torch.randn(4, 6, device=device)
    assert_close(module(x), torch.nn.RMSNorm(6, device=device)(x))
    module.half()
    assert module(x.half()).dtype is torch.float16


def test_bad_casting_is_refused_when_the_module_is_made() -> None:
    with pytest.raises(ValueError, match="casting must be None, 'llama' or 'gemma', got 'bf16'"):
        tridal.nn.RMSNorm(6, casting="bf16")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_torchscript_uses_torchs_function(name: str) -> None:
    module = getattr(tridal.nn, name)(6)
    scripted, x = torch.jit.script(module), torch.randn(4, 6)
    assert_close(scripted(x), module(x))
    with pytest.raises(torch.jit.Error, match="TorchScript has torch's norm, without a residual"):
        scripted(x, x)


@pytest.mark.parametrize("name", NAMES)
def test_checkpointed_and_compiled_modules(device: torch.device, name: str) -> None:
    torch._dynamo.reset()
    module, x = getattr(tridal.nn, name)(6).to(device), torch.randn(4, 6, device=device, requires_grad=True)
    expected = torch.autograd.grad(module(x).sin().sum(), [x, *module.parameters()])
    again = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)
    assert_close(torch.autograd.grad(again.sin().sum(), [x, *module.parameters()]), expected)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(compiled(x).sin().sum(), [x, *module.parameters()]), expected)
