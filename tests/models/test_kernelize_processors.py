"""Rotary embeddings that the processor of an attention calls: which are replaced, and what stays as it was."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tridal
from model_helpers import ops_of

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]


def apply_rotary(x: Tensor, pair: Pair, halves: bool = False, heads_first: bool = True) -> Tensor:
    """Rotates pairs of neighbors, or those of both halves, in float32."""
    cos, sin = (t[None, None] if heads_first else t[None, :, None] for t in pair)
    if halves:
        rotated = torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)
    else:
        rotated = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return (x.float() * cos + rotated.float() * sin).to(x.dtype)


def apply_rotary_twice(x: Tensor, pair: Pair) -> Tensor:
    return 2 * apply_rotary(x, pair)


def get_rotary_angles(x: Tensor) -> None:
    """A function that returns angles is no rotary embedding."""


class Neighbors:
    def __call__(self, attention: Any, x: Tensor, pair: Pair) -> Tensor:
        get_rotary_angles(x)
        return apply_rotary(x, pair, heads_first=False) + 1


class Halves:
    def __call__(self, attention: Any, x: Tensor, pair: Pair) -> Tensor:
        return apply_rotary(x.transpose(1, 2), pair, halves=True).transpose(1, 2)


class Both:
    """Calls the function also with an option that is no constant, and with a list."""

    halves = True

    def __call__(self, attention: Any, x: Tensor, pair: Pair) -> Tensor:
        y = apply_rotary(x.transpose(1, 2), pair, halves=self.halves).transpose(1, 2)
        return apply_rotary(y, [*pair], heads_first=False) + apply_rotary(y, pair, heads_first=False)  # type: ignore[arg-type]


class Twice:
    def __call__(self, attention: Any, x: Tensor, pair: Pair) -> Tensor:
        return apply_rotary_twice(x, pair)


class Attention(nn.Module):
    """An attention of diffusers, without the attention."""

    def __init__(self, processor: Any) -> None:
        super().__init__()
        self.processor, self.linear = processor, nn.Linear(16, 16)

    def forward(self, x: Tensor, pair: Any = None) -> Tensor:
        return self.linear(self.processor(self, x, pair=pair))  # type: ignore[no-any-return]


def inputs(device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Pair]:
    x = torch.randn(2, 5, 3, 16, device=device, dtype=dtype).requires_grad_()
    cos, sin = torch.randn(2, 5, 16, device=device)
    return x, (cos, sin)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("kind", "option"), [(Neighbors, ", interleaved=True"), (Halves, ""), (Both, ", interleaved=True")]
)
def test_results_and_gradients_are_those_of_the_class(
    device: torch.device, kind: Any, option: str, dtype: torch.dtype
) -> None:
    model = Attention(kind()).to(device, dtype).eval()
    x, pair = inputs(device, dtype)
    expected = model(x, pair)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    with tridal.kernelize(model) as report:
        assert [entry.replaced_by for entry in report.entries] == [f"tridal.rotary_embedding, keep_dtype=True{option}"]
        for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert ops_of(lambda other=other: other(x, pair)) == {"rotary_embedding"}
            y = other(x, pair)
            assert_close(y, expected, rtol=1e-3, atol=1e-3)
            assert_close(torch.autograd.grad(y.sum(), x)[0], gradient, rtol=1e-2, atol=1e-2)
        torch.compiler.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        assert ops_of(lambda: compiled(x, pair)) == set()
    assert ops_of(lambda: model(x, pair)) == set()


def test_another_processor_or_function_computes_as_before(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (x, pair) = Attention(Neighbors()).to(device), inputs(device)
    tridal.kernelize(model)
    assert ops_of(lambda: model(x, pair)) == {"rotary_embedding"}
    wide = pair[0][:, :8], pair[1][:, :8]
    with pytest.raises(RuntimeError):
        model(x, wide)  # as the class does
    model.processor, short = Twice(), (pair[0][:3], pair[1][:3])
    assert_close(model(x, short), model.linear(2 * apply_rotary(x, short)))
    model.processor = Neighbors()
    monkeypatch.setitem(globals(), "apply_rotary", lambda x, pair, **options: 3 * x)
    assert ops_of(lambda: assert_close(model(x, pair), model.linear(3 * x + 1))) == set()


def test_other_functions_are_left_with_the_reason() -> None:
    (entry,) = tridal.kernelize(Attention(Twice())).entries
    assert str(entry.reason).startswith("its processor Twice calls apply_rotary_twice: its rotary embedding differs")
    assert tridal.kernelize(Attention(None)).entries == ()
