"""What a program changes after `tridal.kernelize`: attributes, modules inside, methods of classes, and hooks."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import tridal
from model_helpers import ODD, build, ops_of, transformers
from test_kernelize_glu import Experts
from torch_versions import compiles_transformers

Patch = pytest.MonkeyPatch


class OwnNorm(torch.nn.RMSNorm):
    """A norm with a constant of its class, a method and a base class."""

    scale = 1.0

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(super().forward(x))


def doubled(self: Any, x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def set_attribute(path: str, value: Any) -> Callable[[Any, Patch], None]:
    """Returns a change of an attribute of a module, or of a module inside."""
    child, _, name = path.rpartition(".")
    return lambda module, patch: patch.setattr(module.get_submodule(child), name, value)


def set_method(kind: Any, name: str = "forward", value: Any = doubled) -> Callable[[Any, Patch], None]:
    """Returns a change of a class."""
    return lambda module, patch: patch.setattr(kind, name, value)


def norm_of(name: str) -> Any:
    return build(name, **ODD).model.norm


def mlp(act: torch.nn.Module) -> Any:
    found = build("Llama", **ODD).model.layers[0].mlp
    found.act_fn = act
    return found


llama, gemma = (getattr(transformers.models, name) for name in ("llama", "gemma"))
SILU = transformers.activations.SiLUActivation
CHANGES: dict[str, tuple[Callable[[], Any], str, Callable[[Any, Patch], None]]] = {
    "eps": (lambda: norm_of("Llama"), "rms_norm", set_attribute("variance_epsilon", 0.5)),
    "norm of torch": (lambda: torch.nn.LayerNorm(36), "layer_norm", set_method(torch.nn.LayerNorm)),
    "method": (lambda: norm_of("Gemma"), "rms_norm", set_method(gemma.modeling_gemma.GemmaRMSNorm, "_norm")),
    "method of an instance": (lambda: norm_of("Gemma"), "rms_norm", set_attribute("_norm", lambda x: 2 * x)),
    "forward of an instance": (lambda: norm_of("Llama"), "rms_norm", set_attribute("forward", lambda x: 2 * x)),
    "base class": (lambda: OwnNorm(36), "rms_norm", set_method(torch.nn.RMSNorm)),
    "constant of a class": (lambda: OwnNorm(36), "rms_norm", set_method(OwnNorm, "scale", 2.0)),
    "constant of an instance": (lambda: OwnNorm(36), "rms_norm", set_attribute("scale", 2.0)),
    "softmax": (lambda: torch.nn.Softmax(-1), "softmax", set_method(torch.nn.Softmax)),
    "MLP": (lambda: mlp(SILU()), "swiglu", set_method(llama.modeling_llama.LlamaMLP)),
    "activation": (lambda: mlp(SILU()), "swiglu", set_method(SILU)),
    "another activation": (
        lambda: mlp(torch.nn.GELU("tanh")), "geglu",
        lambda module, patch: patch.setitem(module._modules, "act_fn", torch.nn.GELU()),
    ),
    "product of experts": (
        lambda: Experts(36), "swiglu", set_method(Experts, "_apply_gate", lambda self, x: x[..., :36]),
    ),
    "function": (
        lambda: mlp(transformers.activations.GELUTanh()), "geglu", set_attribute("act_fn.act", functional.gelu),
    ),
}  # fmt: skip
"""Modules, the ops that compute them, and changes."""
DUPLICATES = lambda module: module, copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))


@pytest.mark.parametrize(("name", "duplicate"), [*zip(CHANGES, itertools.cycle(DUPLICATES), strict=False)])
def test_the_class_computes_after_a_change(device: torch.device, name: str, duplicate: Callable[[Any], Any]) -> None:
    make, op, change = CHANGES[name]
    module, x = make().to(device), torch.randn(3, 36, device=device)
    plain = copy.deepcopy(module)
    expected = plain(x)
    tridal.kernelize(module)
    module = duplicate(module)
    for _ in range(2):
        assert ops_of(lambda: assert_close(module(x), expected)) == {op}
        with pytest.MonkeyPatch.context() as patch:
            change(plain, patch)
            change(module, patch)
            assert ops_of(lambda: assert_close(module(x), plain(x), rtol=0, atol=0)) == set()
            assert not torch.equal(plain(x), expected)


def test_a_class_that_is_changed_is_compared_again(device: torch.device, monkeypatch: Patch) -> None:
    module, x = norm_of("Llama").to(device), torch.randn(3, 36, device=device)
    tridal.kernelize(module)
    saved = pickle.dumps(module)
    monkeypatch.setattr(llama.modeling_llama.LlamaRMSNorm, "forward", doubled)
    assert ops_of(lambda: assert_close(pickle.loads(saved)(x), 2 * x)) == set()
    assert tridal.kernelize(norm_of("Llama").to(device)).replaced == ()


@pytest.mark.parametrize(("make", "name"), [(lambda: mlp(SILU()), "act_fn"), (lambda: Experts(36), "act")])
def test_the_class_computes_while_its_activation_has_hooks(device: torch.device, make: Any, name: str) -> None:
    module, x, seen = make().to(device), torch.randn(3, 36, device=device), []
    tridal.kernelize(module)
    act = getattr(module, name)
    for register in (act.register_forward_hook, torch.nn.modules.module.register_module_forward_hook):
        with register(lambda module, args, y: seen.append(module)):
            assert ops_of(lambda: module(x)) == set()
    assert seen.count(act) == 2
    assert ops_of(lambda: module(x)) == {"swiglu"}


@compiles_transformers
@pytest.mark.parametrize("name", ["eps", "norm of torch", "softmax"])
def test_a_compiled_function_has_the_change(device: torch.device, name: str) -> None:
    make, _, change = CHANGES[name]
    module, x = make().to(device), torch.randn(3, 36, device=device)
    plain = copy.deepcopy(module)
    tridal.kernelize(module)
    with pytest.MonkeyPatch.context() as patch:
        change(plain, patch)
        change(module, patch)
        torch.compiler.reset()
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        assert ops_of(lambda: assert_close(compiled(x), plain(x))) == set()


def test_a_change_is_logged_once_with_what_to_do(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    class ChangedNorm(torch.nn.LayerNorm):
        pass

    module, x = torch.nn.Sequential(ChangedNorm(36), ChangedNorm(36)).to(device), torch.randn(3, 36, device=device)
    tridal.kernelize(module)
    module[0].eps = module[1].eps = 0.05
    for _ in range(2):
        module(x)
    (record,) = caplog.records
    assert record.getMessage() == (
        "ChangedNorm uses the forward of its class, because the program has changed eps since kernelize. "
        "To compare it again, call tridal.models.restore(model) and tridal.kernelize(model)"
    )
    tridal.models.restore(module)
    tridal.kernelize(module)
    assert ops_of(lambda: module(x)) == {"layer_norm"}
