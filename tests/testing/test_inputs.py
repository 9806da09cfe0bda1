"""Tests the inputs of the conformance suite: their values, masks and memory layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch

from conformance_helpers import CPU
from tridal.testing.cases import Mask
from tridal.testing.inputs import make_mask, make_values, with_layout


@pytest.mark.parametrize(
    ("kind", "has_property"),
    [
        ("some -inf", lambda x: x.isneginf().any() and not x.isneginf().all(-1).any()),
        ("row of -inf", lambda x: x.isneginf().all(-1).any() and not x.isneginf().all()),
        ("some +inf", lambda x: x.isposinf().any()),
        ("some nan", lambda x: x.isnan().any()),
        ("constant", lambda x: (x == x[0, 0]).all()),
        ("dominant", lambda x: x.max() > 50),
        ("shifted", lambda x: x.min() > 9_000),
    ],
)
def test_values_have_the_property_in_their_name_and_are_reproducible(
    kind: Any, has_property: Callable[[torch.Tensor], Any]
) -> None:
    x = make_values(kind, (37, 53), -1)
    assert has_property(x)
    assert torch.equal(x.nan_to_num(), make_values(kind, (37, 53), -1).nan_to_num())


def test_layouts_have_different_strides_and_equal_values() -> None:
    source = make_values("normal", (3, 10, 7, 9), -1)
    tensors = {
        layout: with_layout(source, layout, "float64", CPU)
        for layout in ("contiguous", "transposed", "sliced", "stepped", "channels_last", "permuted")
    }
    assert all(torch.equal(x, source) for x in tensors.values())
    assert [layout for layout, x in tensors.items() if x.is_contiguous()] == ["contiguous"]
    assert len({x.stride() for x in tensors.values()}) == len(tensors)
    assert with_layout(source, "sliced", "float32", CPU).data_ptr() % 16
    assert with_layout(source, "expanded", "float32", CPU).stride()[0] == 0


@pytest.mark.parametrize("kind", get_args(Mask))
def test_mask_can_be_broadcast_and_excludes_some_elements(kind: Mask) -> None:
    mask = make_mask(kind, (4, 3, 17, 33), CPU)
    excluded = ~mask if mask.dtype is torch.bool else mask == -torch.inf
    assert mask.is_floating_point() == kind.startswith("added")
    assert torch.broadcast_shapes(mask.shape, (4, 3, 17, 33)) == (4, 3, 17, 33)
    assert excluded.any()
    assert not excluded.all()
    if mask.shape == (4, 3, 17, 33):
        assert excluded[0, 0, 0].all(), "one row is excluded as a whole"
