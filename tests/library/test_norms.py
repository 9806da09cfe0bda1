"""tridal.rms_norm and tridal.layer_norm: torch's semantics, dtypes and errors, and the arguments that torch lacks."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.nn import functional
from torch.testing import assert_close

import tridal
from tridal.library.norms import functions, norms
from tridal.pytorch.torch import private

NORMS = ["rms_norm", "layer_norm"]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def both(name: str) -> tuple[Any, Any]:
    return getattr(tridal, name), getattr(functional, name)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_results_and_gradients_equal_torch(device: torch.device, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    wanted = shape[-data.draw(st.integers(1, len(shape))) :]
    name, has_residual = data.draw(st.sampled_from(NORMS)), data.draw(st.booleans())
    ours, theirs = both(name)

    def make(*size: int) -> torch.Tensor:
        return torch.randn(size, dtype=torch.float64, device=device, requires_grad=True)

    served = data.draw(st.booleans())
    x, residual = make(*shape), make(*shape) if has_residual else None
    count = data.draw(st.integers(0, 1 if name == "rms_norm" else 2))
    parameters = [make(*wanted) for _ in range(count)]
    total = x if residual is None else x + residual
    expected = [theirs(total, wanted, *parameters), *[total] * has_residual]
    with tridal.use(device=None if served else "auto"):
        found = ours(x, wanted, *parameters, residual=residual)
    found = list(found) if has_residual else [found]
    assert_close(found, expected)
    tensors = [tensor for tensor in (x, residual, *parameters) if tensor is not None]
    subset = [tensor for tensor in tensors if data.draw(st.booleans())] or tensors
    dy = [torch.randn(shape, dtype=torch.float64, device=device) for _ in found]
    assert_close(torch.autograd.grad(found, subset, dy), torch.autograd.grad(expected, subset, dy))


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.complex64])
def test_dtypes_of_results_and_errors_equal_torch(device: torch.device, name: str, dtype: torch.dtype) -> None:
    """Also the default eps, which small numbers show."""
    ours, theirs = both(name)
    x = torch.linspace(-2e-4, 3e-4, 24).reshape(3, 8).to(dtype)
    parameters = [(), *((torch.randn(8).to(weight),) for weight in FLOATS)]
    parameters += [(torch.ones(8).half(), torch.ones(8))] * (name == "layer_norm")
    for tensors in parameters:
        placed = [tensor.to(device) for tensor in tensors]
        try:
            expected = theirs(x, (8,), *tensors)
        except RuntimeError as error:
            with pytest.raises(type(error), match=f"{name}: .* must have the dtype"):
                ours(x.to(device), (8,), *placed)
        else:
            found = ours(x.to(device), (8,), *placed)
            assert found.dtype is expected.dtype
            assert_close(
                found.cpu(), expected, **({} if expected.dtype in FLOATS[2:] else {"rtol": 1e-2, "atol": 1e-3})
            )


@pytest.mark.usefixtures("no_calls")
@pytest.mark.parametrize("promotes", [True, False])
def test_casting_decides_rounding_and_dtype(
    device: torch.device, promotes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norms, "_TORCH_PROMOTES", promotes)
    torch.manual_seed(0)
    x, w = torch.randn(64, 33, device=device).half(), torch.randn(33, device=device)
    n = functional.rms_norm(x.float(), (33,))
    for weight in (w, w.half()):
        wide = weight.float()
        llama = tridal.rms_norm(x, (33,), weight, casting="llama")
        assert_close(llama, (n.half().float() * wide).to(torch.promote_types(x.dtype, weight.dtype)), rtol=1e-3, atol=0)
        gemma = tridal.rms_norm(x, (33,), weight, casting="gemma", weight_offset=1.0)
        assert_close(gemma, (n * (1 + wide)).half(), rtol=1e-3, atol=1e-6)
        plain = tridal.rms_norm(x, (33,), weight)
        assert plain.dtype is (weight.dtype if promotes else x.dtype)
        assert_close(plain, (n * wide).to(plain.dtype), rtol=1e-3, atol=0)
    exact = (n.half().float() * w).double()
    assert (tridal.rms_norm(x, (33,), w, casting="llama") - exact).abs().max() < 1e-6, "n was rounded before"
    assert (n * w - exact).abs().max() > 1e-4, "and this is visible"


@pytest.mark.parametrize("name", NORMS)
def test_the_offset_is_added_in_float32(device: torch.device, name: str) -> None:
    ours, theirs = both(name)
    x, w = torch.randn(2, 16, device=device), torch.full((16,), 2.0**-11, dtype=torch.float16, device=device)
    assert (1 + w == 1).all(), "float16 would lose the weight"
    x = x if name == "rms_norm" else x.half()
    assert_close(ours(x, (16,), w, weight_offset=1.0), (theirs(x.double(), (16,)) * (1 + w.double())).to(x.dtype))
    inputs = (x.requires_grad_(), w.requires_grad_())
    found = torch.autograd.grad(ours(x, (16,), w, weight_offset=0.5).square().sum(), inputs)
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    exact = torch.autograd.grad(theirs(wide[0], (16,), wide[1] + 0.5).square().sum(), wide)
    for gradient, expected in zip(found, exact, strict=True):
        assert_close(gradient.double(), expected, rtol=2**-8, atol=2**-8)
    assert torch.equal(ours(x, (16,), weight_offset=1.0), ours(x, (16,))), "without a weight, nothing is added"


@pytest.mark.parametrize("name", NORMS)
def test_the_rounded_sum_is_normalized_and_returned(device: torch.device, name: str) -> None:
    ours, theirs = both(name)
    x, residual = (torch.randn(5, 300, device=device).half() for _ in range(2))
    y, total = ours(x, (300,), torch.ones(300, device=device).half().requires_grad_(), residual=residual, eps=0.0)
    assert (y.requires_grad, total.requires_grad) == (True, False)
    assert torch.equal(total, x + residual)
    assert_close(y, theirs(total.float(), (300,), eps=0.0).half(), rtol=1e-3, atol=1e-5)
    for other, dtype in ((residual.float(), torch.float32), (residual.bfloat16(), torch.float32)):
        assert [t.dtype for t in ours(x, (300,), residual=other)] == [dtype, dtype]
        assert [t.dtype for t in ours(other, (300,), residual=x)] == [dtype, dtype]


@pytest.mark.parametrize("name", NORMS)
def test_autocast_follows_torchs_list(device: torch.device, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs, kind = getattr(tridal, name), getattr(functional, name), device.type
    assert private.autocasts(name, "cuda") is torch._C._dispatch_has_kernel_for_dispatch_key(
        f"aten::{name}", "AutocastCUDA"
    )
    x, w = torch.randn(3, 8, device=device, dtype=torch.bfloat16), torch.randn(8, device=device, dtype=torch.bfloat16)
    with torch.autocast(kind, dtype=torch.bfloat16):
        assert ours(x, (8,), w).dtype is theirs(x, (8,), w).dtype
        monkeypatch.setattr(functions, "autocasts", lambda op, device_type: (op, device_type) == (name, kind))
        y, total = ours(x, (8,), w, residual=x)
        assert y.dtype is total.dtype is torch.float32
        assert ours(x.double(), (8,)).dtype is torch.float64
    assert_close(y, theirs((x.float() * 2), (8,), w.float()))


@pytest.mark.parametrize("name", NORMS)
def test_traced_sizes_meta_tensors_and_second_derivatives(name: str, device: torch.device) -> None:
    ours, theirs = both(name)
    x = torch.randn(3, 8, device=device)
    traced = torch.jit.trace(lambda x: ours(x, x.shape[-1:]), (x,), check_trace=False)
    assert_close(traced(2 * x), theirs(2 * x, (8,)))
    assert ours(torch.empty(2, 6, device="meta"), (6,)).device.type == "meta"
    y, weight = (torch.rand(shape, dtype=torch.float64, device=device) for shape in ((3, 4, 6), (6, 4)))
    second = (torch.func.hessian(lambda w, f=f: f(y, (4, 6), w, eps=1e-5).square().sum()) for f in both(name))
    assert_close(*(of_weight(weight.T) for of_weight in second))
