"""tridal.linear_cross_entropy: its kernels and edges. test_cross_entropy.py compares it with its definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import tridal
from tridal.library.losses import cross_entropy as kernels
from tridal.ops import NoKernel


def raise_no_kernel(*_: Any) -> Any:
    raise NoKernel


def test_only_requested_gradients_are_computed(device: torch.device) -> None:
    target = torch.tensor([1, 2, 0], device=device)
    for needs in ((True, False), (False, True), (False, False)):
        x, matrix = (torch.randn(3, 4, device=device, requires_grad=need) for need in needs)
        with tridal.record_calls() as records:
            loss = tridal.linear_cross_entropy(x, matrix, target)
        assert_close(loss, functional.cross_entropy(x @ matrix.t(), target))
        assert loss.requires_grad is any(needs)
        assert [record.op for record in records] == ["cross_entropy_with_gradient" if any(needs) else "cross_entropy"]
        if any(needs):
            loss.backward()
            assert [tensor.grad is not None for tensor in (x, matrix)] == list(needs)
    x, matrix = (torch.randn(3, 4, device=device, requires_grad=True) for _ in range(2))
    with tridal.use(batch_invariant=True), tridal.record_calls() as records:
        with_gradients = tridal.linear_cross_entropy(x, matrix, target, reduction="sum")
        assert torch.equal(
            tridal.linear_cross_entropy(x.detach(), matrix.detach(), target, reduction="sum"), with_gradients
        )
    assert [record.op for record in records] == ["cross_entropy", "cross_entropy_backward", "cross_entropy"]


@pytest.mark.parametrize(("dtype", "classes_first"), [(torch.float16, True), (torch.float32, False)])
def test_one_kernel_computes_losses_and_gradients(
    device: torch.device, dtype: torch.dtype, classes_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its results equal those of the two kernels that compute them otherwise."""
    shape = (9, 5) if classes_first else (9,)
    linear_weight = torch.randn(37, *shape[1:], 6, device=device).to(dtype).requires_grad_()
    x = torch.randn(shape[0], 6, device=device).to(dtype).requires_grad_()
    target = torch.randint(37, shape, device=device)
    target[1] = -100
    found = []
    for operations in (["cross_entropy_with_gradient"], ["cross_entropy", "cross_entropy_backward"]):
        with tridal.record_calls() as records:
            loss = tridal.linear_cross_entropy(
                x, linear_weight, target, weight=torch.linspace(0.5, 2, 37, device=device).to(dtype), z_loss=0.1,
                softcap=5.0, reduction="sum",
            )  # fmt: skip
        assert [record.op for record in records] == operations
        found.append((loss, *torch.autograd.grad(loss, (x, linear_weight))))
        monkeypatch.setattr(kernels.Logits, "losses_with_gradient", raise_no_kernel)
    eps = torch.finfo(dtype).eps
    for one, two in zip(*found, strict=True):
        assert_close(one, two, rtol=4 * eps, atol=8 * eps * float(two.detach().abs().max()))


def test_targets_out_of_range_give_nan_where_kernels_do_not_check_them(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "check_range", lambda *_: None)  # the interpreter checks them
    x, matrix = (torch.randn(n, 4, device=device, requires_grad=True) for n in (4, 7))
    target = torch.tensor([6, 7, -1, -100], device=device)
    losses = tridal.linear_cross_entropy(x, matrix, target, reduction="none")
    loss = tridal.linear_cross_entropy(x, matrix, target, reduction="sum")
    gradient = torch.autograd.grad(loss, x)[0]
    assert losses.isnan().tolist() == gradient.isnan().all(1).tolist() == [False, True, True, False]
    assert loss.isnan()
    assert losses[3] == 0
    assert gradient[3].count_nonzero() == 0


def test_float16_gradients_of_a_mean_keep_small_numbers(device: torch.device) -> None:
    """A mean of n rows divides gradients by n. A scale of the loss can restore them only if that is done last."""
    rows = 4096
    x = torch.full((rows, 2), 1.0, dtype=torch.float16, device=device, requires_grad=True)
    matrix = torch.tensor([[6.0, 4.0], [0.0, 0.0]], dtype=torch.float16, device=device, requires_grad=True)
    target = torch.zeros(rows, dtype=torch.long, device=device)
    loss = tridal.linear_cross_entropy(x, matrix, target) * 4096.0
    (found,) = torch.autograd.grad(loss, x)
    wide = x.detach().double().requires_grad_()
    exact = functional.cross_entropy(wide @ matrix.detach().double().t(), target) * 4096
    assert_close(found.double(), torch.autograd.grad(exact, wide)[0], rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize(("rows", "outputs", "reduction"), [(0, (5,), "mean"), (7, (5, 0), "none"), (2, (0,), "sum")])
def test_no_rows_outputs_or_classes_have_the_loss_of_torch(
    device: torch.device, rows: int, outputs: tuple[int, ...], reduction: Any
) -> None:
    x, matrix = (torch.randn(*size, 6, device=device, requires_grad=True) for size in ((rows,), outputs))
    target = torch.full((rows, *outputs[1:]), -100, device=device)
    loss = tridal.linear_cross_entropy(x, matrix, target, reduction=reduction)
    expected = functional.cross_entropy(torch.randn(rows, *outputs, device=device), target, reduction=reduction)
    assert_close(loss, expected, equal_nan=True, check_stride=False)
    gradients = torch.autograd.grad(loss.sum(), (x, matrix))
    assert [gradient.shape for gradient in gradients] == [x.shape, matrix.shape]


def test_the_backward_does_not_overwrite_gradients_that_hooks_keep() -> None:
    x, matrix = torch.randn(6, 5, requires_grad=True), torch.randn(7, 5, requires_grad=True)
    target, kept = torch.randint(7, (6,)), []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append((tensor, tensor.detach().clone()))
        return tensor

    with tridal.use(device="interpreter"), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = tridal.linear_cross_entropy(x, matrix, target)
    (loss * 3).backward()
    assert len(kept) >= 5
    for tensor, before in kept:
        torch.testing.assert_close(tensor, before, rtol=0, atol=0)
    expected = torch.autograd.grad(torch.nn.functional.cross_entropy(x @ matrix.t(), target) * 3, (x, matrix))
    torch.testing.assert_close((x.grad, matrix.grad), expected)


@pytest.mark.parametrize(
    ("dtype", "targets"), [(torch.float16, (0, 1, -100)), (torch.float32, (0, 1, -100)), (torch.float16, (-100,) * 3)]
)
def test_a_mean_with_a_denominator_of_zero_has_the_gradients_of_torch(
    dtype: torch.dtype, targets: tuple[int, ...]
) -> None:
    """Only terms of targets that are not ignored are NaN."""
    x, matrix = (torch.randn(size, dtype=dtype, requires_grad=True) for size in ((3, 5), (7, 5)))
    bias, weight, target = torch.randn(7, dtype=dtype, requires_grad=True), torch.zeros(7), torch.tensor(targets)
    logits = torch.nn.functional.linear(x.float(), matrix.float(), bias.float())
    expected = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, target, weight), (x, matrix, bias))
    with tridal.use(device="interpreter"):
        loss = tridal.linear_cross_entropy(x, matrix, target, linear_bias=bias, weight=weight.to(dtype))
        found = torch.autograd.grad(loss, (x, matrix, bias))
    assert loss.isnan()
    torch.testing.assert_close(found, expected, equal_nan=True)
