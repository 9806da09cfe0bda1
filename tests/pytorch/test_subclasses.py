"""Tensor subclasses and nested tensors: what torch computes, and which errors are not hidden."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tridal
from feature_axes import Subclass
from tridal.errors import LayoutError
from tridal.pytorch.path import defined


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_are_scaled_and_refuse_masks(device: torch.device, layout: torch.layout) -> None:
    parts = [torch.randn(3, 6, device=device), torch.randn(2, 6, device=device)]
    nested = torch.nested.nested_tensor(parts, layout=layout)
    functions: list[Callable[..., torch.Tensor]] = [lambda x: tridal.softmax(x, -1, scale=0.5)]
    if layout is torch.jagged:
        functions.append(torch.compile(functions[0], fullgraph=True, backend="eager"))
    for function in functions:
        for found, part in zip(function(nested).unbind(), parts, strict=True):
            torch.testing.assert_close(found, torch.softmax(part * 0.5, -1))
    refused: dict[str, Any]
    for refused in ({"mask": torch.ones(6, device=device)}, {"causal": True}, {"masked_rows": "zero"}):
        with pytest.raises(LayoutError, match="nested"):
            tridal.softmax(nested, -1, **refused)
    with pytest.raises(TypeError, match="scale must be a number"):
        tridal.softmax(nested, -1, scale=True)


def test_an_error_of_the_registered_op_is_not_hidden_for_other_subclasses(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> Any:
        raise TypeError("a fault of the op")

    monkeypatch.setattr(defined, "overload", fail)
    with pytest.raises(TypeError, match="a fault of the op"):
        tridal.softmax(torch.ones(2, 3, device=device).as_subclass(Subclass))
