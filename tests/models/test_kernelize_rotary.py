"""Rotary embedding of attention modules: which are replaced, which are left with the difference, and what stays."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from model_helpers import ops_of
from rotary_reference import of_transformers as rotary

Tensor = torch.Tensor
OURS = "tridal.rotary_embedding, casting='transformers'"


def rotary_once(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    """Rounds once."""
    wide = rotary(q.double(), k.double(), cos.double(), sin.double(), unsqueeze_dim)
    return tuple(y.to(torch.promote_types(x.dtype, cos.dtype)) for x, y in zip((q, k), wide, strict=True))


def rotary_interleaved(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    """Rotates even and odd elements."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return tuple(x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin for x in (q, k))


def rotary_to_query(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Any = None, **options: Any) -> Any:
    """Rounds to the dtype of query, also if cos and sin are wider."""
    return tuple(y.to(q.dtype) for y in rotary(q, k, cos, sin, **options))


def rotary_of_part(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Any = None, **options: Any) -> Any:
    """Rotates as many elements as cos and sin have."""
    rotated = rotary(*(x[..., : cos.shape[-1]] for x in (q, k)), cos, sin, **options)
    return tuple(torch.cat((y, x[..., cos.shape[-1] :]), -1) for x, y in zip((q, k), rotated, strict=True))


def renamed(forward: Any) -> Any:
    """A decorator that gives an argument another name, such as that of transformers for arguments of older versions."""

    @functools.wraps(forward)
    def renaming(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **{"angles" if name == "rotations" else name: kwargs[name] for name in kwargs})

    return renaming


def scale(x: Tensor) -> Tensor:
    return x


class Attention(torch.nn.Module):
    """Projects, and rotates query and key."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(8, 24)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], unsqueeze_dim: int = 1, *, half: bool = True) -> Tensor:
        q, k, v = self.project(x).view(*x.shape[:-1], 3, 2, 4).unbind(2)
        if unsqueeze_dim == 1:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k = rotary_of_module(q, k, *angles, unsqueeze_dim=unsqueeze_dim)  # type: ignore[name-defined]  # noqa: F821
        return scale(q + k) + v / (1 + half)


def forward_with(names: dict[str, Any]) -> Any:
    """Returns the forward of the attention as a function with other globals."""
    own = Attention.forward
    forward = types.FunctionType(own.__code__, names, "forward", own.__defaults__)
    forward.__kwdefaults__ = own.__kwdefaults__
    return forward


@pytest.fixture
def attention() -> Iterator[Any]:
    """A function that returns an attention whose class calls a function of its Python module."""
    name = "module_of_attention"
    module = sys.modules[name] = types.ModuleType(name)

    def make(function: Any, decorate: Any = lambda forward: forward) -> Any:
        module.__dict__.update(rotary_of_module=function, scale=scale, __builtins__=__builtins__)
        forward = decorate(forward_with(module.__dict__))
        kind = type("Attention", (Attention,), {"forward": forward, "__module__": name})
        module.__dict__["Attention"] = kind
        torch.manual_seed(0)
        return kind()

    yield make
    del sys.modules[name]


def inputs(device: torch.device, width: int = 4) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    angle = torch.randn(1, 5, width, device=device)
    return torch.randn(2, 5, 8, device=device, requires_grad=True), (angle.cos(), angle.sin())


@pytest.mark.parametrize(
    ("function", "by", "heads"),
    [
        (rotary, OURS, 1), (rotary_once, "tridal.rotary_embedding", 2),
        (lambda *args, **kwargs: rotary(*args, **kwargs), OURS, 2),  # such as functions that `kernels` wraps
    ],
)  # fmt: skip
def test_replaced_attention_computes_the_same(
    device: torch.device, attention: Any, function: Any, by: str, heads: int
) -> None:
    model = attention(function).to(device)
    x, angles = inputs(device)
    expected = model(x, angles, heads)
    gradients = torch.autograd.grad(expected.sum(), (x, *model.parameters()))
    (entry,) = tridal.kernelize(model).entries
    assert (entry.replaced_by, entry.reason) == (by, "compiled functions leave it to the compiler")
    for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert ops_of(lambda other=other: other(x, angles, heads)) == {"rotary_embedding"}
        y = other(x, angles, unsqueeze_dim=heads)
        assert_close(y, expected)
        assert_close(torch.autograd.grad(y.sum(), (x, *other.parameters())), gradients)
    tridal.models.restore(model)
    assert ops_of(lambda: model(x, angles, heads)) == set()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (rotary_interleaved, "its rotary embedding differs from tridal.rotary_embedding by "),
        (lambda q, k, *rest, **options: rotary(q, k.detach(), *rest, **options), "the comparison raised RuntimeError"),
        (lambda x, cos, sin: x, "rotary_of_module takes (x, cos, sin), and not (query, key, cos, sin, unsqueeze_dim)"),
        (rotary_to_query, "for a query of torch.bfloat16 with cos and sin of torch.float32, it returns torch.bfloat16"),
    ],
)
def test_other_functions_are_left_with_the_difference(attention: Any, function: Any, reason: str) -> None:
    (entry,) = tridal.kernelize(attention(function)).entries
    assert entry.replaced_by is None
    assert reason in str(entry.reason)


def test_part_of_the_dims_is_rotated_by_the_function_of_the_class(device: torch.device, attention: Any) -> None:
    model = attention(rotary_of_part).to(device)
    (x, whole), (_, part) = inputs(device), inputs(device, width=2)
    expected = model(x, part)
    assert tridal.kernelize(model).entries[0].replaced_by == OURS
    assert ops_of(lambda: model(x, whole)) == {"rotary_embedding"}
    assert ops_of(lambda: assert_close(model(x, part), expected, rtol=0, atol=0)) == set()


def test_globals_that_change_later_count(device: torch.device, attention: Any) -> None:
    """The code of the class reads its module's globals in each call, also the function if it is replaced again."""
    model = attention(rotary).to(device)
    x, angles = inputs(device)
    tridal.kernelize(model)
    first, names = model(x, angles), sys.modules["module_of_attention"].__dict__
    names["scale"] = lambda tensor: 2 * tensor
    assert not torch.equal(model(x, angles), first)
    names["rotary_of_module"] = lambda q, k, *rest, **options: (q, k)
    assert ops_of(lambda: model(x, angles)) == set()
    names["rotary_of_module"] = rotary
    assert ops_of(lambda: model(x, angles)) == {"rotary_embedding"}


def test_decorators_of_the_forward_are_kept(device: torch.device, attention: Any) -> None:
    model = attention(rotary, lambda forward: renamed(renamed(forward))).to(device)
    x, angles = inputs(device)
    expected = model(x, rotations=angles, half=False)
    assert [entry.replaced_by for entry in tridal.kernelize(model).entries] == [OURS]
    ops = ops_of(lambda: assert_close(model(x, rotations=angles, half=False), expected))
    assert ops == {"rotary_embedding"}


def test_forward_that_another_package_replaces_later_computes(device: torch.device, attention: Any) -> None:
    model, (x, angles) = attention(rotary).to(device), inputs(device)
    kind = type(model)
    tridal.kernelize(model)
    saved = pickle.dumps(model)
    kind.forward = forward_with({"scale": scale, "rotary_of_module": rotary_interleaved})
    expected = kind.forward(model, x, angles)
    for changed in (model, pickle.loads(saved)):
        assert ops_of(lambda changed=changed: assert_close(changed(x, angles), expected)) == set()
