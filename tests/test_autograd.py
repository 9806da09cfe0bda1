"""Gradients of the ops on every backend: values to any order, and the behaviour of torch's own autograd nodes."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import tridal
from tridal.devices import settings
from tridal.pytorch.path import row_calls

Op = Callable[..., torch.Tensor]


@pytest.fixture(params=["softmax", "log_softmax"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def leaf(device: torch.device, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, device=device, requires_grad=True)


@pytest.mark.parametrize(("shape", "dim"), [((2, 3), -1), ((2, 2, 2), 1), ((4,), 0)])
def test_gradcheck(device: torch.device, name: str, shape: tuple[int, ...], dim: int) -> None:
    x = leaf(device, *shape)
    op = getattr(tridal, name)
    assert gradcheck(
        lambda z: op(z, dim), (x,), check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert gradgradcheck(
        lambda z: op(z, dim), (x,), check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=True
    )


def test_gradcheck_with_a_transposed_input(device: torch.device, name: str) -> None:
    x = leaf(device, 3, 2)
    assert gradcheck(lambda z: getattr(tridal, name)(z.t(), -1), (x,), check_forward_ad=True)


@pytest.mark.parametrize("order", [2, 3])
def test_higher_order_gradients_equal_torch(device: torch.device, name: str, order: int) -> None:
    def derivative(op: Op, x: torch.Tensor) -> torch.Tensor:
        y = op(x, -1).square().sum()
        for _ in range(order - 1):
            (g,) = torch.autograd.grad(y, x, create_graph=True)
            y = g.sin().sum()
        return torch.autograd.grad(y, x)[0]

    x = leaf(device, 3, 5)
    assert_close(derivative(getattr(tridal, name), x), derivative(getattr(torch, name), x))


def test_gradient_launches_one_kernel(device: torch.device, name: str) -> None:
    x = leaf(device, 3, 5)
    y = getattr(tridal, name)(x).square().sum()
    with tridal.record_calls() as calls:
        (dx,) = torch.autograd.grad(y, x)
    assert [(call.op, call.reason) for call in calls] == [(f"{name}_backward", None)]
    assert_close(dx, torch.autograd.grad(getattr(torch, name)(x, -1).square().sum(), x)[0])


def test_double_backward_equals_torch(device: torch.device, name: str) -> None:
    x = leaf(device, 3, 5)
    (first,) = torch.autograd.grad(getattr(tridal, name)(x).square().sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(getattr(torch, name)(x, -1).square().sum(), x, create_graph=True)
    assert_close(first, expected)
    for loss in (torch.sum, lambda g: g.sin().sum()):
        second = torch.autograd.grad(loss(first), x, retain_graph=True)
        assert_close(second, torch.autograd.grad(loss(expected), x, retain_graph=True))


@pytest.mark.parametrize("stride", ["expanded", "transposed", "sliced", "negative view"])
def test_output_gradients_with_any_strides(device: torch.device, name: str, stride: str) -> None:
    x = leaf(device, 4, 6)
    grad = {
        "expanded": lambda: torch.randn(4, 1, dtype=torch.float64, device=device).expand(4, 6),
        "transposed": lambda: torch.randn(6, 4, dtype=torch.float64, device=device).t(),
        "sliced": lambda: torch.randn(4, 13, dtype=torch.float64, device=device)[:, 1::2],
        "negative view": lambda: torch._neg_view(torch.randn(4, 6, dtype=torch.float64, device=device)),
    }[stride]()
    ours = torch.autograd.grad(getattr(tridal, name)(x), x, grad)
    assert_close(ours, torch.autograd.grad(getattr(torch, name)(x, -1), x, grad))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("cast", [None, torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_gradients_have_the_dtype_of_the_input(
    device: torch.device, name: str, dtype: torch.dtype, cast: torch.dtype | None
) -> None:
    x = leaf(device, 4, 6, dtype=dtype)
    y = getattr(tridal, name)(x, -1, cast)
    grad = torch.randn(4, 6, device=device).to(y.dtype)
    (dx,) = torch.autograd.grad(y, x, grad)
    assert dx.dtype == dtype
    (expected,) = torch.autograd.grad(getattr(torch, name)(x, -1, cast), x, grad)
    assert_close(dx.double(), expected.double(), rtol=2e-2, atol=2e-2)


def test_backward_uses_the_settings_of_the_forward(backend: Any, name: str) -> None:
    with tridal.use(device=backend.name):
        x = leaf(tridal.device(), 3, 5)
        y = getattr(tridal, name)(x)
    with tridal.use(device="auto"), tridal.record_calls() as calls:
        y.sin().sum().backward()
    assert_close(x.grad, torch.autograd.grad(getattr(torch, name)(x, -1).sin().sum(), x)[0])
    assert [(call.op, call.backend) for call in calls] == [(f"{name}_backward", backend.name)]


def test_saved_tensor_hooks_see_one_tensor(device: torch.device, name: str) -> None:
    packed, unpacked = [], []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor.t().contiguous()

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        unpacked.append(tensor)
        return tensor.t()

    x = leaf(device, 3, 5)
    with saved_tensors_hooks(pack, unpack):
        y = getattr(tridal, name)(x)
    y.sin().sum().backward()
    assert len(packed) == len(unpacked) == 1
    assert_close(x.grad, torch.autograd.grad(getattr(torch, name)(x, -1).sin().sum(), x)[0])
    with save_on_cpu():
        y = getattr(tridal, name)(x)
    assert_close(torch.autograd.grad(y.sin().sum(), x)[0], x.grad)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(device: torch.device, name: str, reentrant: bool) -> None:
    x = leaf(device, 3, 5)
    y = checkpoint(lambda z: getattr(tridal, name)(z * 2).sin(), x, use_reentrant=reentrant)
    y.sum().backward()
    assert_close(x.grad, torch.autograd.grad(getattr(torch, name)(x * 2, -1).sin().sum(), x)[0])


@pytest.mark.filterwarnings("ignore:Error detected in")
def test_anomaly_mode(device: torch.device, name: str) -> None:
    x = leaf(device, 3, 5)
    with torch.autograd.detect_anomaly(check_nan=True):
        getattr(tridal, name)(x).sum().backward()
        y = getattr(tridal, name)(torch.full((2, 3), torch.nan, device=device, requires_grad=True))
        with pytest.raises(RuntimeError, match="returned nan values"):
            y.sum().backward()


def test_inplace_change_of_the_output_raises_in_backward(device: torch.device, name: str) -> None:
    y = getattr(tridal, name)(leaf(device, 3, 5))
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_backward_twice_needs_retain_graph(device: torch.device, name: str) -> None:
    y = getattr(tridal, name)(leaf(device, 3, 5)).sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_no_grad_and_inference_mode(device: torch.device, name: str) -> None:
    x = leaf(device, 3, 5)
    with torch.no_grad():
        assert not getattr(tridal, name)(x).requires_grad
    with torch.inference_mode():
        y = getattr(tridal, name)(x)
        assert y.is_inference()
        again = getattr(tridal, name)(y)
    assert_close(again, getattr(torch, name)(y, -1))
    assert_close(getattr(tridal, name)(y), again)  # an inference tensor outside inference mode
    assert not getattr(tridal, name)(x.detach()).requires_grad


def test_hooks_and_gradient_accumulation(device: torch.device, name: str) -> None:
    x = leaf(device, 3, 5)
    seen = []
    y = getattr(tridal, name)(x)
    y.register_hook(lambda g: g * 2)
    x.register_hook(lambda g: seen.append(g))
    y.sin().sum().backward()
    assert len(seen) == 1
    assert_close(x.grad, 2 * torch.autograd.grad(getattr(torch, name)(x, -1).sin().sum(), x)[0])
    before = x.grad.clone()
    getattr(tridal, name)(x).sin().sum().backward()
    assert_close(x.grad, 1.5 * before)


def test_output_is_freed_when_the_last_reference_is_deleted(device: torch.device, name: str) -> None:
    x = leaf(device, 3, 5)
    for op in (getattr(tridal, name), lambda z: getattr(torch.ops.tridal, name)(z, -1, z.dtype)):
        y = op(x)
        alive = weakref.ref(y)
        del y
        gc.collect()
        assert alive() is None


def test_backward_in_another_thread_uses_the_settings_of_the_forward(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch computes the gradients of an accelerator in a thread of its own, which does not inherit `tridal.use`."""
    seen: list[bool] = []
    x = torch.randn(3, 4, device=device, dtype=torch.float64, requires_grad=True)
    with tridal.use(batch_invariant=True):
        y = torch.ops.tridal.softmax(x, -1, x.dtype) + torch.ops.tridal.softmax(x, -1, x.dtype, None, 0.5)
    original = row_calls.device_context

    def record(device: torch.device) -> Any:
        seen.append(settings.current().batch_invariant)
        return original(device)

    monkeypatch.setattr(row_calls, "device_context", record)
    worker = threading.Thread(target=lambda: torch.autograd.grad(y, x, torch.ones_like(x)))
    worker.start()
    worker.join()
    assert seen == [True, True]
    assert not settings.current().batch_invariant
