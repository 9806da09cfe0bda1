"""Arguments of the losses that are unusual, and checks of the registered op."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.testing import assert_close

import tridal
from tridal.errors import ShapeError

X = torch.randn(4, 5)


@pytest.mark.parametrize("function", [tridal.cross_entropy, tridal.log_probs])
@pytest.mark.parametrize("served", [True, False])
def test_targets_out_of_range_of_logits_with_tangents_raise(device: torch.device, function: Any, served: bool) -> None:
    if device.type != "cpu":
        pytest.skip("the range is checked on the CPU")
    with tridal.use(device=None if served else "auto"), forward_ad.dual_level():
        logits = forward_ad.make_dual(X, torch.ones_like(X))
        with pytest.raises(IndexError, match="target must hold classes from 0 to 4, got 5"):
            function(logits, torch.tensor([0, 5, 1, 2]))


def test_a_byte_target_can_have_the_class_to_which_ignore_index_would_wrap(device: torch.device) -> None:
    x, target = torch.randn(3, 200, device=device), torch.tensor([156, 0, 7], device=device)
    assert_close(tridal.cross_entropy(x, target.byte()), functional.cross_entropy(x, target))
    features, matrix = torch.randn(3, 8, device=device), torch.randn(200, 8, device=device)
    expected = functional.cross_entropy(features @ matrix.t(), target)
    assert_close(tridal.linear_cross_entropy(features, matrix, target.byte()), expected)


def test_meta_tensors_have_a_meta_loss() -> None:
    x, target = torch.empty(7, 5, device="meta"), torch.empty(7, dtype=torch.int64, device="meta")
    assert tridal.cross_entropy(x, target, reduction="none").shape == (7,)  # type: ignore[union-attr]
    assert tridal.linear_cross_entropy(x, torch.empty(3, 5, device="meta"), target).device.type == "meta"


def test_the_registered_op_checks_its_arguments() -> None:
    x, op = torch.randn(3, 5), torch.ops.tridal.cross_entropy
    numbers = (1, -100, 0.0, 0.0, None, torch.float32)
    with pytest.raises(ShapeError, match="target must have the shape"):
        op(x, torch.zeros(4, dtype=torch.long), None, *numbers)
    given = (x, torch.zeros(3, dtype=torch.long), None, torch.zeros(3), None)
    with pytest.raises(ShapeError, match=r"grad must have the shape \(\), got \(3,\): one number"):
        torch.ops.tridal.cross_entropy_backward(torch.ones(3), None, *given, *numbers[:-1], [True, False])
