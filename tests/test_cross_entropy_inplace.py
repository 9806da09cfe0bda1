"""inplace_backward: the gradient is written into the logits, and every use that would read them afterwards raises."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import tridal


def logits(device: torch.device, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A leaf, and logits that an operation computed from it."""
    leaf = torch.randn(shape, device=device, requires_grad=True)
    return leaf, leaf * 2


@pytest.mark.parametrize("served", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize("shape", [(4, 7), (2, 7, 3), (7,)], ids=str)
@pytest.mark.parametrize("probabilities", [False, True])
def test_backward_writes_the_gradient_into_the_logits(
    device: torch.device, served: bool, shape: tuple[int, ...], probabilities: bool
) -> None:
    leaf, x = logits(device, *shape)
    target = torch.rand(shape, device=device)
    target = target if probabilities else target.argmax(min(1, len(shape) - 1))
    before = x.detach().clone()
    with tridal.use(device=None if served else "auto"):
        loss = tridal.cross_entropy(x, target, inplace_backward=True)
        assert_close(x.detach(), before)
        loss.backward()
    other = leaf.detach().requires_grad_()
    expected = other * 2
    expected.retain_grad()
    functional.cross_entropy(expected, target).backward()
    assert_close(leaf.grad, other.grad)
    assert_close(x.detach(), expected.grad)


def test_logits_with_the_classes_last_in_memory_are_overwritten(device: torch.device) -> None:
    leaf, x = logits(device, 2, 3, 7)
    moved = x.transpose(1, 2)
    target = torch.randint(7, (2, 3), device=device)
    tridal.cross_entropy(moved, target, inplace_backward=True).backward()
    other = leaf.detach().requires_grad_()
    functional.cross_entropy((other * 2).transpose(1, 2), target).backward()
    assert_close(leaf.grad, other.grad)
    assert_close(x.detach() * 2, leaf.grad)


def test_gradient_of_lse_is_written_too(device: torch.device) -> None:
    leaf, x = logits(device, 4, 7)
    target = torch.randint(7, (4,), device=device)
    loss, lse = tridal.cross_entropy(x, target, return_lse=True, inplace_backward=True)
    (loss + lse.square().sum()).backward()
    other = leaf.detach().requires_grad_()
    wide = other * 2
    (functional.cross_entropy(wide, target) + wide.logsumexp(1).square().sum()).backward()
    assert_close(leaf.grad, other.grad)
    assert_close(x.detach() * 2, leaf.grad)


def test_another_operation_that_saved_the_logits_raises(device: torch.device) -> None:
    _, x = logits(device, 4, 7)
    square = x.square().sum()
    tridal.cross_entropy(x, torch.zeros(4, dtype=torch.long, device=device), inplace_backward=True).backward(
        retain_graph=True
    )
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.backward()


def test_second_backward_raises(device: torch.device) -> None:
    _, x = logits(device, 4, 7)
    loss = tridal.cross_entropy(x, torch.zeros(4, dtype=torch.long, device=device), inplace_backward=True)
    (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
    assert gradient.data_ptr() == x.data_ptr()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, x)


@pytest.mark.parametrize("view", [False, True])
def test_leaf_that_requires_grad_raises(device: torch.device, view: bool) -> None:
    leaf, _ = logits(device, 4, 7)
    x = leaf.view(2, 14) if view else leaf
    with pytest.raises(RuntimeError, match="inplace_backward must be False for a leaf that requires grad"):
        tridal.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.long, device=device), inplace_backward=True)


def test_logits_without_contiguous_memory_raise(device: torch.device) -> None:
    _, x = logits(device, 4, 14)
    target = torch.zeros(4, dtype=torch.long, device=device)
    with pytest.raises(RuntimeError, match=r"logits that are not contiguous \(strides \(14, 2\)\)"):
        tridal.cross_entropy(x[:, ::2], target, inplace_backward=True)


def test_calls_without_a_gradient_leave_the_logits(device: torch.device) -> None:
    leaf, x = logits(device, 4, 7)
    target = torch.zeros(4, dtype=torch.long, device=device)
    before = x.detach().clone()
    with torch.no_grad():
        tridal.cross_entropy(leaf, target, inplace_backward=True)
    (gradient,) = torch.autograd.grad(tridal.cross_entropy(x, target, inplace_backward=True), x, create_graph=True)
    assert gradient.requires_grad
    assert_close(x.detach(), before)


def test_a_leaf_that_is_a_view_is_not_overwritten(device: torch.device) -> None:
    leaf = torch.randn(9, 5, device=device)[2:].requires_grad_()
    target = torch.zeros(7, dtype=torch.int64, device=device)
    with pytest.raises(RuntimeError, match="for a leaf that requires grad"):
        tridal.cross_entropy(leaf.view(7, 5), target, inplace_backward=True)


def test_negative_views_are_not_overwritten(device: torch.device) -> None:
    _, x = logits(device, 7, 5)
    with pytest.raises(RuntimeError, match="not contiguous"):
        tridal.cross_entropy(
            torch._neg_view(x), torch.zeros(7, dtype=torch.int64, device=device), inplace_backward=True
        )


def test_transforms_compute_the_gradient_in_new_memory(device: torch.device) -> None:
    x, target = torch.randn(7, 5, device=device), torch.zeros(7, dtype=torch.int64, device=device)
    before = x.clone()
    found = torch.func.grad(lambda x: tridal.cross_entropy(x, target, inplace_backward=True))(x)
    assert_close(found, torch.func.grad(lambda x: functional.cross_entropy(x, target))(x))
    assert_close(x, before, rtol=0, atol=0)


def test_logits_that_a_module_with_hooks_passes_on_are_views_of_a_leaf(device: torch.device) -> None:
    leaf = torch.randn(2, 3, device=device, requires_grad=True)
    target = torch.rand(2, 3, device=device, requires_grad=True)
    before, loss = leaf.detach().clone(), tridal.nn.CrossEntropyLoss(inplace_backward=True)
    loss.register_full_backward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="leaf"):
        loss(leaf.view(2, 3), target)
    loss(leaf * 2, target.detach()).backward()
    assert_close(leaf.detach(), before)
