"""Tests swiglu and geglu: halves of one tensor, the dtypes, and the roundings of `casting`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import tridal
from tridal import testing
from tridal.devices.types import Backend
from tridal.testing.implementation import overridden

Tensor = torch.Tensor
tanh = {"approximate": "tanh"}
ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]] = {
    "swiglu": (tridal.swiglu, functional.silu),
    "geglu": (tridal.geglu, functional.gelu),
    "geglu of tanh": (partial(tridal.geglu, **tanh), partial(functional.gelu, **tanh)),
}  # type: ignore[dict-item]
EACH = pytest.mark.parametrize(("ours", "activation"), ACTIVATIONS.values(), ids=ACTIVATIONS)
GATES = [0.0, -0.0, 1e-30, -3.0, 1.0, 6.0, 40.0, -40.0, 88.0, -88.0, 104.0, -104.0, 1e4, -1e4]


def gradients(y: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(y, tensors, torch.ones_like(y))


@EACH
@pytest.mark.parametrize(
    ("dtype", "served"), [(torch.bfloat16, True), (torch.float32, True), (torch.float32, False), (torch.float64, True)]
)
def test_derivatives_of_gates_up_to_the_largest_number_are_their_limits(
    device: torch.device, dtype: torch.dtype, served: bool, ours: Any, activation: Any
) -> None:
    """The square of a gate from 1.8e19 on is infinite in float32. torch's gradients of gelu with tanh are NaN there."""
    small = torch.tensor(GATES, dtype=torch.float64, device=device).requires_grad_()
    with tridal.use(device=None if served else "auto"):
        y, expected = ours(small, small.detach()), activation(small) * small.detach()
        assert_close((y, *gradients(y, small)), (expected, *gradients(expected, small)), rtol=1e-9, atol=1e-9)
    limit = torch.finfo(dtype).max
    sizes = torch.tensor([150.0, limit**0.5 / 2, limit**0.5 * 2, limit / 2, limit], dtype=torch.float64, device=device)
    sizes = sizes.to(dtype)
    gate = torch.cat((sizes, -sizes)).requires_grad_()
    up = torch.full_like(gate, 0.5).requires_grad_()
    with tridal.use(device=None if served else "auto"):
        found = gradients(ours(gate, up), gate, up)
    wanted = torch.where(gate > 0, up, 0.0), torch.where(gate > 0, gate, 0.0)
    assert_close(found, wanted)


def test_gelu_of_all_float16_numbers_rounds_once() -> None:
    """With the device's exp2, a polynomial replaces erf, as in the plans for NVIDIA GPUs."""
    gate = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16).view(256, 256)
    config = {"schedule": "whole_row", "rows": 4, "cols": 256, "exp2_bias": 0.0}
    entry = {"kernel": "geglu", "dtype": "float16", "cols": 256, "config": config}
    with tridal.use(device="interpreter", kernel_configs=[entry]):
        found = tridal.geglu(gate, torch.ones_like(gate)).double()
    exact = gate.double() * torch.special.ndtr(gate.double())
    # Half a unit in the last place, the error of the polynomial, and the part beyond 6.5 deviations.
    allowed = exact.abs() * (2**-11 + 1e-5) + 2**-25 + gate.double().abs() * 5e-11
    finite = torch.isfinite(gate)
    assert ((found - exact).abs() <= allowed)[finite].all()
    assert_close(found[~finite], exact[~finite], equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("halves", [False, True])
def test_limits_bound_the_gate_and_up(device: torch.device, dtype: torch.dtype, halves: bool) -> None:
    limit = 1.1  # has no exact number
    gate, up = (2 * torch.randn(2, 5, 34, device=device, dtype=dtype)).unbind()
    gate[0, 0] = torch.nan
    gate, up = gate.requires_grad_(), up.requires_grad_()
    found = tridal.swiglu(*((torch.cat((gate, up), -1),) if halves else (gate, up)), limit=limit)
    expected = functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    assert_close(found, expected, equal_nan=True)
    grads = zip(gradients(found, gate, up), gradients(expected, gate, up), strict=True)
    for ours, theirs in grads:
        assert_close(ours[1:], theirs[1:])


@EACH
@pytest.mark.parametrize("shape", [(3, 4, 14), (2,), (5, 0), (0, 4)])
def test_halves_of_one_tensor_equal_two_tensors(
    device: torch.device, shape: tuple[int, ...], ours: Any, activation: Any
) -> None:
    x = torch.randn(shape, device=device).requires_grad_()
    gate, up = (half.detach().contiguous().requires_grad_() for half in x.chunk(2, -1))
    y, expected = ours(x), ours(gate, up)
    assert torch.equal(y, expected)
    assert y.is_contiguous()
    (gradient,) = gradients(y, x)
    assert torch.equal(gradient, torch.cat(gradients(expected, gate, up), -1))
    strided = torch.randn(*shape[:-1], 2 * shape[-1], device=device)[..., ::2]
    assert torch.equal(ours(strided), ours(*strided.chunk(2, -1)))


@pytest.mark.parametrize(
    ("plan", "columns", "dtype"),
    [
        ("whole_row", 781, torch.bfloat16), ("whole_row", 1026, torch.float64), ("whole_row+peel", 8, torch.float32),
        ("whole_row+peel", 781, torch.float16), ("whole_row+peel", 1026, torch.bfloat16),
        ("column_loop", 781, torch.float32), ("column_loop", 1026, torch.float16),
    ],
)  # fmt: skip
def test_unaligned_halves_and_their_gradients(
    device: torch.device, backend: Backend, dtype: torch.dtype, columns: int, plan: str
) -> None:
    """The second half of a row has another misalignment than the first one."""
    x, dy = (torch.randn(5, n, device=device).to(dtype) for n in (2 * columns, columns))
    results, override = [], testing.PLAN_OVERRIDES[plan]
    with overridden(backend, "overridden", override) as name, tridal.use(device=name, fallback="error"):
        for gate, up in ([None, None], [half.clone() for half in x.chunk(2, -1)], x.chunk(2, -1)):
            given = [x] if gate is None else [gate, up]
            leaves = [tensor.detach().requires_grad_() for tensor in given]
            y = tridal.swiglu(*leaves)
            results.append((y, torch.cat(torch.autograd.grad(y, leaves, dy), -1)))
    for found in results[::2]:
        assert_close(found, results[1], rtol=0, atol=0)
    gate, up = (half.double().requires_grad_() for half in x.chunk(2, -1))
    y = functional.silu(gate) * up
    expected = y.to(dtype), torch.cat(torch.autograd.grad(y, (gate, up), dy.double()), -1).to(dtype)
    assert_close(results[0], expected)


@EACH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_casting_rounds_as_two_operations(ours: Any, activation: Any, dtype: torch.dtype) -> None:
    """On a device without a backend, where torch computes both."""
    gate, up = torch.randn(64, 64).mul(3).to(dtype), torch.randn(64, 64).to(dtype)
    with tridal.use(device="auto"):
        rounded, once = ours(gate, up, casting="transformers"), ours(gate, up)
    exact = activation(gate.double())
    large = exact.abs() > 1e-3  # a float32 gelu of very negative gates is not exact
    assert (rounded == exact.to(dtype) * up)[large].double().mean() > 0.99
    assert (once == (exact * up).to(dtype))[large].double().mean() > 0.99
    assert (rounded != once)[large].double().mean() > 0.1
