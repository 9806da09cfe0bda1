"""Sizes and options of prepared calls: others, also of another type, are checked again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import tridal

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def interpreted(nothing_prepared: None) -> Iterator[None]:
    """The interpreter serves CPU tensors, and no call is prepared."""
    pytest.importorskip("triton")
    with tridal.use(device="interpreter"):
        yield


def test_symbolic_sizes_are_not_compared_with_those_of_an_earlier_call() -> None:
    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return tridal.rms_norm(x, x.shape[-1:], weight, 1e-5)  # type: ignore[no-any-return]

    for _ in range(2):
        norm(torch.randn(4, 16), torch.ones(16))
    traced = make_fx(norm, tracing_mode="symbolic")(torch.randn(4, 16), torch.ones(16))
    assert_close = torch.testing.assert_close
    x, weight = torch.randn(3, 24), torch.rand(24)
    assert_close(traced(x, weight), torch.nn.functional.rms_norm(x, (24,), weight, 1e-5))
    assert not traced.shape_env.guards


def test_sizes_that_change_in_place_or_have_another_type_are_checked_again() -> None:
    x = torch.randn(3, 1, 5)
    sizes: list[Any] = [5]
    for _ in range(2):
        tridal.rms_norm(x, sizes)
    sizes.insert(0, 1)
    x[:, 0, 0] += 3
    torch.testing.assert_close(tridal.rms_norm(x, sizes), torch.nn.functional.rms_norm(x, sizes))
    for _ in range(2):
        tridal.layer_norm(x, (1, 5))
    with pytest.raises(TypeError):
        tridal.layer_norm(x, (True, 5))
    sizes[0] = 2
    with pytest.raises(ValueError, match="normalized_shape"):
        tridal.rms_norm(x, sizes)


def test_options_of_another_type_or_value_are_checked_again() -> None:
    x, weight, target = torch.randn(6, 16), torch.randn(16), torch.tensor([3, -100, 0, 15, 7, 7])
    for _ in range(2):
        tridal.rms_norm(x, (16,), weight, 1.0)
        tridal.cross_entropy(x, target, label_smoothing=0.0, ignore_index=-100)
    with pytest.raises(TypeError):
        tridal.rms_norm(x, (torch.tensor([1, 2]),), weight, 1.0)  # type: ignore[arg-type]
    for bad in ({"eps": True}, {"normalized_shape": (16.0,)}, {"weight_offset": False}, {"normalized_shape": {16}}):
        with pytest.raises(TypeError):
            tridal.rms_norm(**{"input": x, "normalized_shape": (16,), "weight": weight, "eps": 1.0, **bad})
    for bad_loss in ({"label_smoothing": False}, {"ignore_index": -100.0}, {"z_loss": False}, {"softcap": False}):
        with pytest.raises(TypeError):
            tridal.cross_entropy(x, target, **bad_loss)
    with pytest.raises(IndexError):
        tridal.cross_entropy(x, target + 13)
    expected = torch.nn.functional.rms_norm(x, (16,), weight, 2.0)
    torch.testing.assert_close(tridal.rms_norm(x, (16,), weight, 2.0), expected)
