"""override_torch: which torch functions it affects, how long it lasts, and that torch is restored afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import tridal
from processes import python
from tridal.pytorch.call_records import CallRecord

HAS_RMS_NORM = hasattr(torch.ops.aten, "_fused_rms_norm")
NORMS = [F.layer_norm, *[F.rms_norm] * HAS_RMS_NORM]
ATEN = (
    "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm",
    "native_layer_norm_backward", *["_fused_rms_norm"] * HAS_RMS_NORM,
)  # fmt: skip


def registered_kernels() -> list[str]:
    return [torch._C._dispatch_dump(f"aten::{name}") for name in ATEN]


@pytest.fixture
def calls() -> Iterator[list[CallRecord]]:
    """The records of all calls."""
    before = registered_kernels()
    with tridal.record_calls() as records:
        yield records
    assert registered_kernels() == before, "torch's kernels are restored"


def names(calls: list[CallRecord]) -> list[str]:
    """Returns the names of the kernels that ran."""
    return [call.op for call in calls if call.backend != "torch"]


AFFECTED: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "torch.softmax": ("softmax", lambda x: torch.softmax(x, 0)),
    "F.cross_entropy": ("log_softmax", lambda x: F.cross_entropy(x[0], torch.tensor([1, 0, 2], device=x.device))),
    "nn.CrossEntropyLoss of probabilities": (
        "log_softmax", lambda x: torch.nn.CrossEntropyLoss()(x[0], torch.eye(3, 5, dtype=x.dtype, device=x.device)),
    ),
    "masked.softmax": ("softmax", lambda x: torch.masked.softmax(x, -1, mask=x > -1)),
    "eager attention": ("softmax", lambda x: torch.softmax(x @ x.transpose(1, 2) / 5**0.5, -1) @ x),
    "unfused SDPA": ("softmax", lambda x: torch.ops.aten._scaled_dot_product_attention_math(x, x, x)[0]),
    "nn.LayerNorm": ("layer_norm", lambda x: torch.nn.LayerNorm(5, dtype=x.dtype, device=x.device)(x)),
} | ({} if not HAS_RMS_NORM else {
    "nn.RMSNorm": ("rms_norm", lambda x: torch.nn.RMSNorm(5, dtype=x.dtype, device=x.device)(x)),
})  # fmt: skip


@pytest.mark.parametrize(("op", "function"), AFFECTED.values(), ids=AFFECTED)
def test_affected_functions_forward_and_backward(
    device: torch.device, calls: list[CallRecord], op: str, function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = torch.randn(2, 3, 5, dtype=torch.float64, device=device, requires_grad=True)
    expected = function(x)
    (expected_grad,) = torch.autograd.grad(expected.sin().sum(), x)
    assert calls == []
    with tridal.override_torch() as override:
        assert device.type in override.device_types
        y = function(x)
        assert op in names(calls)
        (grad,) = torch.autograd.grad(y.sin().sum(), x)
        assert f"{op}_backward" in names(calls)
        after = function(x).sin().sum()
    assert_close(y, expected)
    assert_close([grad, *torch.autograd.grad(after, x)], [expected_grad] * 2)  # a backward may run after the end
    calls.clear()
    function(x)
    assert calls == []


def test_errors_are_those_of_torch(device: torch.device) -> None:
    x = torch.ones(3, 8, device=device)
    with tridal.override_torch():
        with pytest.raises(IndexError):
            torch.softmax(x, 2)
        with pytest.raises((RuntimeError, NotImplementedError)):
            torch.softmax(x.long(), 0)
        assert torch.softmax(torch.empty(3, 5, device="meta"), -1).shape == (3, 5)  # no backend serves it
        for norm in NORMS:
            with pytest.raises(RuntimeError, match="not implemented for"):
                norm(x.int(), (8,))
            with pytest.raises(RuntimeError, match=r"Given normalized_shape=\[7\]"):
                norm(x, (7,))
            with pytest.raises(RuntimeError, match="Expected weight to be of same shape"):
                norm(x, (8,), torch.ones(7, device=device))
        with pytest.raises(tridal.errors.DTypeError, match="weight"):
            torch.nn.functional.layer_norm(x, (8,), torch.ones(8, dtype=torch.float64, device=device))


def test_overrides_nest_and_end_in_any_order(device: torch.device, calls: list[CallRecord]) -> None:
    x = torch.randn(3, 5, device=device)
    first, second = tridal.override_torch(), tridal.override_torch()
    with tridal.override_torch():
        first.undo()
        first.undo()
    torch.softmax(x, -1)
    assert names(calls) == ["softmax"]
    second.undo()
    torch.softmax(x, -1)
    assert names(calls) == ["softmax"]
    with pytest.raises(RuntimeError, match="has ended"), second:
        pass


@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, *[torch.nn.RMSNorm] * HAS_RMS_NORM])
def test_frozen_and_empty_norms(device: torch.device, kind: Any) -> None:
    module, x = kind(6).to(device), torch.randn(4, 6, device=device)
    expected = torch.autograd.grad(module(x).sin().sum(), module.weight)
    with tridal.override_torch():
        assert_close(torch.autograd.grad(module(x).sin().sum(), module.weight), expected)
        module.requires_grad_(False)
        assert not module(x).requires_grad
        empty = torch.randn(0, 6, device=device, requires_grad=True)
        assert_close(torch.autograd.grad(module(empty).sum(), empty)[0], torch.zeros_like(empty))


def test_override_without_a_served_device_warns(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tridal.pytorch.torch.override.is_served", lambda device_type: False)
    with tridal.override_torch() as override:
        assert override.device_types == ()
    assert "nothing to do: no available backend serves a device type with the device" in caplog.text


def overridden_kernel(backend: Any) -> str:
    """Returns what torch's dispatcher prints for a kernel of a backend's device if an override is active."""
    return f"{torch._C._dispatch_key_for_device(backend.device_type)} (inactive)"


def test_environment_variable_starts_the_override(backend: Any) -> None:
    program = """if True:
        import os, sys, torch

        for value in ("yes", "maybe"):
            if os.fork() == 0:
                os.environ["TRIDAL_OVERRIDE_TORCH"] = value
                import tridal

                print(repr(value), sys.argv[1] in torch._C._dispatch_dump("aten::_softmax"), flush=True)
                os._exit(0)
            os.wait()
    """
    done = python("-c", program, overridden_kernel(backend), TRIDAL_DEVICE=backend.name)
    assert done.stdout.splitlines() == ["'yes' True"], done.stderr
    assert "TRIDAL_OVERRIDE_TORCH: expected 1 or 0, found 'maybe'" in done.stderr
