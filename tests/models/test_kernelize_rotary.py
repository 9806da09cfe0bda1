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


def rotary_to_halves(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    """Rotates even and odd elements by the first half of cos and sin, and writes halves."""
    cos, sin = (t[..., : t.shape[-1] // 2].unsqueeze(unsqueeze_dim) for t in (cos, sin))
    pairs = ((x[..., ::2], x[..., 1::2]) for x in (q, k))
    return tuple(torch.cat((a * cos - b * sin, b * cos + a * sin), -1) for a, b in pairs)


def rotary_of_one(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """Rotates one tensor [batch, length, heads, dim] in float32 by a number for each pair."""
    cos, sin = (torch.cat((t, t), -1).unsqueeze(2) for t in (cos, sin))
    first, second = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)


def rotary_of_tokens(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
    """Rotates [length, heads, dim], as vision models do."""
    return tuple(y[0] for y in rotary(q[None], k[None], cos[None], sin[None], 2))


def rotary_of_last_tokens(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
    """Leaves the tokens before those that cos has."""
    first = q.shape[0] - cos.shape[0]
    rotated = rotary_of_tokens(q[first:], k[first:], cos, sin)
    return tuple(torch.cat((x[:first], y)) for x, y in zip((q, k), rotated, strict=True))


def rotary_back(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    """Rotates by the negative angle."""
    return rotary(q, k, cos, -sin, unsqueeze_dim)


def rotary_of_last_elements(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    """Rotates the last elements, as many as cos and sin have."""
    size = cos.shape[-1]
    rotated = rotary(*(x[..., -size:] for x in (q, k)), cos, sin, unsqueeze_dim)
    return tuple(torch.cat((x[..., :-size], y), -1) for x, y in zip((q, k), rotated, strict=True))


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


def forward_of_one(self: Any, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates query and key one after the other."""
    q, k, v = self.project(x).view(*x.shape[:-1], 3, 2, 4).unbind(2)
    cos, sin = angles
    return rotary_of_module(q, sin, cos) + rotary_of_module(k, sin=sin, cos=cos) + v  # type: ignore[name-defined,no-any-return]  # noqa: F821


def forward_of_tokens(self: Any, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates tensors [length, heads, dim] of the first sequence."""
    q, k, v = self.project(x[0]).view(-1, 3, 2, 4).unbind(1)
    q, k = rotary_of_module(q, k, *(t[0] for t in angles))  # type: ignore[name-defined]  # noqa: F821
    return q + k + v  # type: ignore[no-any-return]


def forward_with(names: dict[str, Any], own: Any = Attention.forward) -> Any:
    """Returns the forward of the attention as a function with other globals."""
    forward = types.FunctionType(own.__code__, names, "forward", own.__defaults__)
    forward.__kwdefaults__ = own.__kwdefaults__
    return forward


@pytest.fixture
def attention() -> Iterator[Any]:
    """A function that returns an attention whose class calls a function of its Python module."""
    name = "module_of_attention"
    module = sys.modules[name] = types.ModuleType(name)

    def make(function: Any, decorate: Any = lambda forward: forward, own: Any = Attention.forward) -> Any:
        module.__dict__.update(rotary_of_module=function, scale=scale, __builtins__=__builtins__)
        forward = decorate(forward_with(module.__dict__, own))
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
        (rotary_interleaved, f"{OURS}, interleaved=True", 2),
        (rotary_to_halves, f"{OURS}, interleaved=True, to_halves=True", 1),
        (rotary_to_query, f"{OURS}, keep_dtype=True", 1),
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
        (rotary_back, "its rotary embedding differs from tridal.rotary_embedding by "),
        (rotary_of_last_elements, "it does not rotate the first elements if cos has fewer than query"),
        (rotary_of_last_tokens, "it does not rotate all tokens"),
        (lambda q, k, *rest, **options: rotary(q, k.detach(), *rest, **options), "the comparison raised RuntimeError"),
        (lambda x, angle: x, "rotary_of_module takes (x, angle), and not (query, key, cos, sin, unsqueeze_dim)"),
        (lambda q, k, cos, sin, back=False: (q, k), "rotary_of_module takes (q, k, cos, sin, back), and not"),
    ],
)
def test_other_functions_are_left_with_the_difference(attention: Any, function: Any, reason: str) -> None:
    (entry,) = tridal.kernelize(attention(function)).entries
    assert entry.replaced_by is None
    assert reason in str(entry.reason)


@pytest.mark.parametrize(
    ("function", "forward", "width", "by"),
    [
        (rotary_of_one, forward_of_one, 2, "tridal.rotary_embedding, keep_dtype=True"),
        (rotary_of_tokens, forward_of_tokens, 4, OURS), (rotary_of_part, Attention.forward, 2, OURS),
    ],
)  # fmt: skip
def test_other_arguments_and_dims(
    device: torch.device, attention: Any, function: Any, forward: Any, width: int, by: str
) -> None:
    model = attention(function, own=forward).to(device)
    x, angles = inputs(device, width)
    expected = model(x, angles)
    gradients = torch.autograd.grad(expected.sum(), (x, *model.parameters()))
    assert [entry.replaced_by for entry in tridal.kernelize(model).entries] == [by]
    assert ops_of(lambda: assert_close(model(x, angles), expected)) == {"rotary_embedding"} | (
        {"rotary_embedding_rest"} if function is rotary_of_part else set()
    )
    assert_close(torch.autograd.grad(model(x, angles).sum(), (x, *model.parameters())), gradients)


def test_calls_of_other_shapes_are_computed_by_the_function_of_the_class(device: torch.device, attention: Any) -> None:
    """torch broadcasts a single angle to all tokens."""
    model = attention(rotary).to(device)
    x, angles = inputs(device)
    first = tuple(t[:, :1] for t in angles)
    expected = model(x, first)
    tridal.kernelize(model)
    assert ops_of(lambda: assert_close(model(x, first), expected, rtol=0, atol=0)) == set()


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
