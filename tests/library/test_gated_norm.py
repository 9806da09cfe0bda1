"""Tests gated_rms_norm against the formulas of models: order of gate and norm, activations, dtypes, wrong arguments."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import tridal

Tensor = torch.Tensor
OPTIONS = [{"activation": a, "gate_first": first} for a, first in product(("silu", "sigmoid"), (False, True))]
each = pytest.mark.parametrize("options", OPTIONS, ids=lambda o: f"{o['activation']}-{o['gate_first']}")


def of_models(x: Tensor, gate: Tensor, weight: Tensor | None, activation: str, gate_first: bool) -> Tensor:
    """Computes the norm as Mamba-2 (`gate_first`) and gated delta networks do, without their roundings."""
    activated = (functional.silu if activation == "silu" else torch.sigmoid)(gate)
    normalized = functional.rms_norm(x * activated if gate_first else x, x.shape[-1:], weight, 1e-5)
    return normalized if gate_first else normalized * activated


@each
@pytest.mark.parametrize("affine", [True, False])
def test_function_and_gradients_are_those_of_models(device: torch.device, options: Any, affine: bool) -> None:
    tensors = [torch.randn(3, 5, 64, dtype=torch.float64, device=device).requires_grad_() for _ in range(2)]
    tensors += [torch.randn(64, dtype=torch.float64, device=device).requires_grad_()] * affine
    x, gate, weight = (*tensors, None)[:3]
    assert x is not None
    assert gate is not None
    y, expected = tridal.gated_rms_norm(x, gate, (64,), weight, 1e-5, **options), of_models(x, gate, weight, **options)
    assert_close(y, expected)
    grad = torch.randn_like(y)
    assert_close(torch.autograd.grad(y, tensors, grad), torch.autograd.grad(expected, tensors, grad))


@pytest.mark.parametrize("weight_dtype", [torch.float16, torch.float32])
@each
def test_llama_casting_rounds_in_the_order_of_torchs_ops(
    device: torch.device, options: Any, weight_dtype: torch.dtype
) -> None:
    x, gate = torch.randn(2, 64, 48, device=device).half()
    weight = torch.randn(48, device=device).to(weight_dtype)
    activated = (functional.silu if options["activation"] == "silu" else torch.sigmoid)(gate.float())
    gated = x.float() * activated if options["gate_first"] else x.float()
    expected = weight * functional.rms_norm(gated, (48,), eps=1e-5).half()
    expected = expected if options["gate_first"] else (expected * activated).half()
    y = tridal.gated_rms_norm(x, gate, (48,), weight, 1e-5, **options, casting="llama")
    assert y.dtype is expected.dtype
    assert (y != expected).double().mean() < 0.02  # an addition in another order may change a rounding
    assert_close(y, expected, rtol=2**-9, atol=1e-6)
    once = tridal.gated_rms_norm(x, gate, (48,), weight, 1e-5, **options)
    assert (once != expected).double().mean() > 0.1


@pytest.mark.parametrize("index", range(3), ids=["input", "gate", "weight"])
def test_float64_is_mixed_with_other_dtypes_by_torch_alone(device: torch.device, index: int) -> None:
    """Only the weight may be narrower than a float64 input."""
    for narrow in (False, True):  # one float64 tensor, or all others
        tensors = [
            torch.randn(*shape, device=device, dtype=torch.float32 if (i == index) == narrow else torch.float64)
            for i, shape in enumerate([(4, 16), (4, 16), (16,)])
        ]
        for tensor in tensors:
            tensor.requires_grad_()
        x, gate, weight = tensors
        with tridal.record_calls() as calls:
            y = tridal.gated_rms_norm(x, gate, (16,), weight, 1e-5)
            found = torch.autograd.grad(y.sum(), tensors)
        wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
        exact = of_models(*wide, "silu", False)
        assert_close(y, exact.to(x.dtype))
        for gradient, expected in zip(found, torch.autograd.grad(exact.sum(), wide), strict=True):
            assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-5)
        by_torch = {call.op for call in calls if call.backend == "torch"}
        assert by_torch == (set() if narrow and index == 2 else {"gated_rms_norm", "gated_rms_norm_backward"})


@each
def test_dtype_is_that_of_the_input_and_gradients_have_the_dtypes_of_their_tensors(
    device: torch.device, options: Any
) -> None:
    x = torch.randn(7, 64, device=device).half().requires_grad_()
    gate, weight = (torch.randn(*shape, device=device, requires_grad=True) for shape in ((7, 64), (64,)))
    y = tridal.gated_rms_norm(x, gate, (64,), weight, 1e-5, **options)
    assert y.dtype is torch.float16
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, gate, weight)]
    expected = of_models(*wide, **options)
    assert_close(y.double(), expected, rtol=2**-10, atol=1e-6)  # rounded once
    grad = torch.randn_like(y)
    for found, exact in zip(
        torch.autograd.grad(y, (x, gate, weight), grad), torch.autograd.grad(expected, wide, grad.double()), strict=True
    ):
        assert_close(found.double(), exact, rtol=2**-10 if found.dtype is torch.float16 else 2**-18, atol=1e-4)


def test_calls_that_differ_in_an_option_do_not_share_a_kernel(device: torch.device) -> None:
    x, gate = torch.randn(2, 4, 32, device=device)
    for options in (*OPTIONS, *OPTIONS):
        assert_close(tridal.gated_rms_norm(x, gate, (32,), eps=1e-5, **options), of_models(x, gate, None, **options))


def test_module_has_the_state_of_torchs_rms_norm() -> None:
    norm = tridal.nn.GatedRMSNorm(8, eps=1e-5, activation="sigmoid", gate_first=True, casting="llama")
    norm.load_state_dict(torch.nn.RMSNorm(8).state_dict())
    options = "activation='sigmoid', gate_first=True, casting='llama'"
    assert str(norm) == f"GatedRMSNorm((8,), eps=1e-05, elementwise_affine=True, {options})"
    x, gate = torch.randn(2, 3, 8)
    assert_close(norm(x, gate), of_models(x, gate, norm.weight, "sigmoid", True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gate": torch.ones(2, 4)}, r"gate must have the shape \(2, 8\)"),
        ({"gate": None}, "gate must be a torch.Tensor, got None"),
        ({"weight": torch.ones(4)}, r"weight must have the shape \(8,\)"),
        ({"activation": "gelu"}, "activation must be 'silu' or 'sigmoid', got 'gelu'"),
        ({"casting": "gemma"}, "casting must be None or 'llama', got 'gemma'"),
        ({"gate_first": 1}, "gate_first must be a bool, got 1"),
        ({"normalized_shape": (4,)}, r"normalized_shape must be the last sizes"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    given = {"input": torch.ones(2, 8), "gate": torch.ones(2, 8), "normalized_shape": (8,), **arguments}
    with pytest.raises((TypeError, ValueError), match=f"gated_rms_norm: {message}"):
        tridal.gated_rms_norm(**given)
