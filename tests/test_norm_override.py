"""override_torch replaces torch's LayerNorm and RMSNorm, and their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import tridal

NAMES = ["layer_norm"] + ["rms_norm"] * hasattr(torch.ops.aten, "_fused_rms_norm")
TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.float64: (1e-7, 1e-7), torch.bfloat16: (1.6e-2, 1.6e-2)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("affine", [False, True])
def test_results_and_gradients_equal_torch(device: torch.device, name: str, dtype: torch.dtype, affine: bool) -> None:
    function, (rtol, atol) = getattr(functional, name), TOLERANCE[dtype]
    x = torch.randn(4, 3, 5, dtype=dtype, device=device, requires_grad=True)
    w = torch.randn(3, 5, dtype=dtype, device=device, requires_grad=True)
    weights = [w] * ((1 + (name == "layer_norm")) if affine else 0)
    inputs = [x, w] if affine else [x]
    expected = function(x, (3, 5), *weights)
    dy = torch.randn_like(x)
    with tridal.override_torch(), tridal.record_calls() as calls:
        found = function(x, (3, 5), *weights)
        gradients = torch.autograd.grad(found, inputs, dy)
    assert [call.op for call in calls] == [name, f"{name}_backward"]
    assert all(call.schedule for call in calls), "kernels computed both"
    assert_close(found, expected, rtol=rtol, atol=atol)
    assert_close(gradients, torch.autograd.grad(expected, inputs, dy), rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives_equal_torch(device: torch.device, name: str) -> None:
    function = getattr(functional, name)
    x = torch.randn(4, 5, dtype=torch.float64, device=device, requires_grad=True)
    results = []
    for active in (False, True):
        with tridal.override_torch() if active else torch.enable_grad():
            (dx,) = torch.autograd.grad(function(x, (5,)).sin().sum(), x, create_graph=True)
            results.append(torch.autograd.grad(dx.square().sum(), x))
    assert_close(*results)


@pytest.mark.parametrize("name", NAMES)
def test_frozen_tensors_and_modules(device: torch.device, name: str) -> None:
    module = {"layer_norm": torch.nn.LayerNorm, "rms_norm": torch.nn.RMSNorm}[name](6).to(device)
    x = torch.randn(4, 6, device=device)
    expected = torch.autograd.grad(module(x).sin().sum(), module.weight)
    with tridal.override_torch():
        assert_close(torch.autograd.grad(module(x).sin().sum(), module.weight), expected)
        module.requires_grad_(False)
        assert not module(x).requires_grad
        empty = torch.randn(0, 6, device=device, requires_grad=True)
        assert_close(torch.autograd.grad(module(empty).sum(), empty)[0], torch.zeros_like(empty))


def test_statistics_have_torchs_shape_and_dtype(device: torch.device) -> None:
    for dtype, weight in ((torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float32,) * 2):
        x, w = torch.randn(4, 2, 6).to(device, dtype), torch.randn(2, 6).to(device, weight)
        expected = torch.native_layer_norm(x, (2, 6), w, None, 1e-5) if weight is dtype or x.is_cpu else None
        with tridal.override_torch():
            found = torch.native_layer_norm(x, (2, 6), w, None, 1e-5)
        assert [t.shape for t in found] == [(4, 2, 6), (4, 1, 1), (4, 1, 1)]
        if expected is not None:
            assert [t.dtype for t in found] == [t.dtype for t in expected]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input": torch.ones(3, 8).int()}, "not implemented for"),
        ({"normalized_shape": (7,)}, r"Given normalized_shape=\[7\]"),
        ({"weight": torch.ones(7)}, "Expected weight to be of same shape"),
    ],
    ids=["integers", "shape", "weight"],
)
def test_bad_arguments_raise_the_same_error(
    device: torch.device, name: str, options: dict[str, Any], message: str
) -> None:
    arguments: dict[str, Any] = {"input": torch.ones(3, 8), "normalized_shape": (8,), **options}
    arguments = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    with tridal.override_torch(), pytest.raises(RuntimeError, match=message):
        getattr(functional, name)(**arguments)


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_of_the_override_can_be_differentiated_after_its_end(device: torch.device, name: str) -> None:
    x = torch.randn(4, 6, dtype=torch.float64, device=device, requires_grad=True)
    function = getattr(functional, name)
    for _ in range(2):
        with tridal.override_torch():
            y = function(x, (6,))
        assert_close(torch.autograd.grad(y.sin().sum(), x), torch.autograd.grad(function(x, (6,)).sin().sum(), x))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_left_after_the_block(device: torch.device, name: str) -> None:
    with tridal.override_torch():
        pass
    with tridal.record_calls() as calls:
        getattr(functional, name)(torch.randn(2, 4, device=device), (4,))
    assert calls == []
