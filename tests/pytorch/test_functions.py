"""The public functions: results, autocast, and the choice between a backend and torch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from tridal.devices import registry
from tridal.devices.types import LaunchPlan, Problem
from tridal.errors import NoBackendError, TridalError
from tridal.pytorch import device_context
from tridal.testing.implementation import overridden

NAMES = ["softmax", "log_softmax"]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.usefixtures("no_calls")
def test_autocast_casts_softmax_to_float32_on_accelerators(
    device: torch.device, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On accelerators, softmax is on autocast's float32 list. The CPU is treated as one here."""
    monkeypatch.setattr(device_context, "has_autocast", lambda device_type: True)
    half, double = torch.randn(3, 5, device=device).half(), torch.randn(3, 5, dtype=torch.float64, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        assert getattr(tridal, name)(half).dtype is torch.float32
        assert getattr(tridal, name)(half, -1, torch.float16).dtype is torch.float16
        assert getattr(tridal, name)(double).dtype is torch.float64
        assert torch.vmap(getattr(tridal, name))(half).dtype is torch.float32
        with torch.autocast(device.type, enabled=False):
            assert getattr(tridal, name)(half).dtype is torch.float16
    assert getattr(tridal, name)(half).dtype is torch.float16


@pytest.mark.parametrize("value", [0, True, b"cpu", torch.device("cpu")], ids=repr)
def test_the_name_of_a_device_is_text(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^name must be a device name such as 'cpu', got "):
        tridal.device(value)
    assert tridal.device("cpu:0") == torch.device("cpu", 0)


def test_fallback_error_raises_where_no_backend_serves(name: str) -> None:
    with tridal.use(device="auto", fallback="error"):
        for call in (lambda x: getattr(tridal, name)(x), torch.vmap(getattr(tridal, name))):
            with pytest.raises(
                NoBackendError, match="no available backend serves meta tensors, and fallback is 'error'"
            ):
                call(torch.empty(3, 5, device="meta"))


class Narrow:
    """A backend that computes float32 only."""

    def __init__(self, backend: Any) -> None:
        self._backend, self.name, self.dtypes = backend, "narrow", frozenset({"float32"})

    def __getattr__(self, member: str) -> Any:
        return getattr(self._backend, member)


@pytest.fixture
def narrow(backend: Any) -> Iterator[Any]:
    registry.register(Narrow(backend))
    yield registry.get("narrow")
    registry.unregister("narrow")


def test_torch_computes_dtypes_that_a_backend_lacks(narrow: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    device_context._log_fallback.cache_clear()
    with tridal.use(device="narrow"), caplog.at_level(logging.WARNING, "tridal"):
        x = torch.randn(3, 5, device=tridal.device()).half()
        for _ in range(3):
            assert_close(getattr(tridal, name)(x), getattr(torch, name)(x, -1))
        assert_close(getattr(tridal, name)(x, -1, torch.float64), getattr(torch, name)(x, -1, torch.float64))
    messages = [record.message for record in caplog.records]
    assert messages == [
        "backend 'narrow' does not support float16: torch computes them",
        "backend 'narrow' does not support float16, float64: torch computes them",
    ], "one message per reason"
    with tridal.use(device="narrow", fallback="error"):
        with pytest.raises(NoBackendError, match="'narrow' does not support float16, and fallback is 'error'"):
            getattr(tridal, name)(x)
        assert_close(getattr(tridal, name)(x.float()), getattr(torch, name)(x.float(), -1))


def test_unregistered_backend_is_not_used_again(backend: Any, name: str) -> None:
    registry.register(Narrow(backend))
    with tridal.use(device="narrow"):
        x = torch.randn(3, 5, device=tridal.device())
        getattr(tridal, name)(x)
        registry.unregister("narrow")
        with pytest.raises(TridalError, match="narrow"):
            getattr(tridal, name)(x)


@pytest.mark.parametrize(
    ("dtype", "bias"), [(torch.float32, 2.0**-60), (torch.bfloat16, 2.0**-60), (torch.bfloat16, 0.0)]
)
def test_exp_by_exp2_is_as_accurate_as_the_dtype(backend: Any, dtype: torch.dtype, bias: float) -> None:
    """A plan can request exp2 with a correction, and without one (a bias of 0) for 16-bit dtypes.

    Without a correction, all exps of a row have the same relative error, which cancels. Infinite elements stay right.
    """

    def changed(planned: LaunchPlan, _: Problem) -> LaunchPlan:
        return replace(planned, config=replace(planned.config, exp2_bias=bias and (planned.config.exp2_bias or bias)))

    with overridden(backend, "changed", changed) as name, tridal.use(device=name, fallback="error"):
        x = torch.randn(8, 301, device=tridal.device()) * 6
        x[1, ::2] = x[2] = -torch.inf
        x[3, 1], x[4, 2], x[5, 0] = torch.nan, torch.inf, 3e38
        x[6] = -(10.0 ** torch.linspace(0, 38, 301, device=x.device))
        x[7] = 2e9
        x = x.to(dtype)
        y = tridal.softmax(x, -1)
        z = torch.log_softmax(x[:1].float(), -1)
        g = torch.randn_like(z)
        dx = torch.ops.tridal.log_softmax_backward(g, z, -1, torch.float32)
    shifted = (x.float() - x.float().amax(-1, keepdim=True)).double()  # rounded to float32, as in the kernel
    roundings = 200 if backend.interpreted else 24  # the interpreter's fma rounds twice, so the product's error remains
    error = roundings * 2.0**-24 if dtype is torch.float32 else torch.finfo(dtype).eps
    assert_close(y.double(), torch.softmax(shifted, -1), rtol=error, atol=1e-19, equal_nan=True)
    exact = g.double() - z.double().exp() * g.double().sum()
    assert_close(dx.double(), exact, rtol=1e-5, atol=1e-5 * float(g.abs().sum()))
