"""Prepared calls of ops of several tensors: which calls reuse one, and that their results are those of the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

import tridal
from tridal.devices import registry
from tridal.pytorch import fused_calls, fused_ops, private

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def served(nothing_prepared: None) -> Iterator[None]:
    """The interpreter serves CPU tensors, and no call is prepared."""
    pytest.importorskip("triton")
    if registry.get("interpreter").unavailable():
        pytest.skip("needs the interpreter")
    torch.manual_seed(0)
    with tridal.use(device="interpreter"):
        yield


def make(dtype: torch.dtype = torch.float32, grad: bool = True) -> dict[str, Tensor]:
    """The tensors of a call, all of them new."""
    sizes = {"x": (6, 16), "residual": (6, 16), "weight": (16,), "bias": (16,)}
    made = {name: torch.randn(size).to(dtype).requires_grad_(grad) for name, size in sizes.items()}
    return made | {"target": torch.tensor([3, -100, 0, 15, 7, 7]), "classes": torch.rand(16).to(dtype)}


def rms(t: dict[str, Tensor], **options: Any) -> Any:
    return tridal.rms_norm(t["x"], (16,), t["weight"], 1e-5, **options)


def layer(t: dict[str, Tensor], **options: Any) -> Any:
    return tridal.layer_norm(t["x"], [16], t["weight"], t["bias"], **options)


def entropy(t: dict[str, Tensor], **options: Any) -> Any:
    return tridal.cross_entropy(t["x"] * 1, t["target"], **options)


CALLS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "rms": rms,
    "rms-residual": lambda t: rms(t, residual=t["residual"]),
    "rms-gemma": lambda t: rms(t, weight_offset=1.0, casting="gemma"),
    "rms-no-weight": lambda t: tridal.rms_norm(t["x"], t["x"].shape[-1:]),
    "rms-two-dims": lambda t: tridal.rms_norm(t["x"], (6, 16), t["residual"]),
    "rms-frozen": lambda t: tridal.rms_norm(t["x"].detach(), (16,), t["weight"], residual=t["residual"].detach()),
    "layer": layer,
    "layer-residual": lambda t: layer(t, residual=t["residual"]),
    "layer-two-dims": lambda t: tridal.layer_norm(t["x"], (6, 16), t["residual"]),
    "layer-autocast": lambda t: layer({**t, "x": t["x"].bfloat16()}),
    "entropy": entropy,
    "entropy-sum": lambda t: entropy(t, reduction="sum", z_loss=0.1, softcap=5.0),
    "entropy-none": lambda t: entropy(t, reduction="none"),
    "entropy-smooth": lambda t: entropy(t, label_smoothing=0.1),
    "entropy-weight": lambda t: tridal.cross_entropy(t["x"], t["target"].clamp(0), t["classes"], ignore_index=7),
    "entropy-weight-smooth": lambda t: tridal.cross_entropy(t["x"], t["target"], t["classes"], label_smoothing=0.1),
    "entropy-lse": lambda t: entropy(t, return_lse=True),
    "entropy-probabilities": lambda t: tridal.cross_entropy(t["x"], t["residual"].detach().softmax(-1)),
    "entropy-probabilities-sum": lambda t: tridal.cross_entropy(t["x"], t["residual"].detach().exp(), reduction="sum"),
    "entropy-bytes": lambda t: tridal.cross_entropy(t["x"], t["target"].clamp(0).byte()),
    "entropy-one-row": lambda t: tridal.cross_entropy(t["x"][0], t["target"][0]),
    "entropy-inner-classes": lambda t: tridal.cross_entropy(
        t["x"].view(3, 16, 2), t["target"].view(3, 2), t["classes"]
    ),
}  # fmt: skip


def results_of(function: Callable[[dict[str, Tensor]], Any], tensors: dict[str, Tensor]) -> list[Tensor | None]:
    """Returns the results of a call and the gradients of all tensors that require one."""
    found = function(tensors)
    found = found if isinstance(found, tuple) else (found,)
    differentiated = [each for each in found if each.requires_grad]
    leaves = [tensor for tensor in tensors.values() if tensor.requires_grad]
    grads = [torch.ones_like(each).cumsum(-1) if each.dim() else torch.ones_like(each) for each in differentiated]
    if not differentiated:
        return [*found]
    return [*found, *torch.autograd.grad(differentiated, leaves, grads, allow_unused=True)]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_repeated_calls_return_the_results_of_the_first(name: str, grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = make(grad=grad)
    context: AbstractContextManager[Any] = nullcontext()
    if name == "layer-autocast":
        monkeypatch.setattr(private, "autocasts", lambda *_: True)
        context = torch.autocast("cpu")
    with context:
        first = results_of(CALLS[name], tensors)
        again = [results_of(CALLS[name], tensors) for _ in range(2)][-1]  # prepares the call, then its backward
        with monkeypatch.context() as patch:
            patch.setattr(fused_calls, "call", None)
            for function in ("is_direct", "gradients"):
                patch.setattr(fused_ops, function, None)
            for module in ("norms", "cross_entropy"):
                patch.setattr(f"tridal.pytorch.{module}.call", None)
            patch.setattr(fused_calls, "gradients", None)
            reused = results_of(CALLS[name], tensors)
    for results in (again, reused):
        for expected, found in zip(first, results, strict=True):
            assert (expected is None) == (found is None)
            if expected is not None and found is not None:
                torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
                assert (found.requires_grad, found.stride()) == (expected.requires_grad, expected.stride())
