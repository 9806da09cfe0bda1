"""Calls: which calls are kept and repeated, and that their results are those of the first."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

import tridal
from call_helpers import frames_to_launch
from op_samples import Sample, each_kind, loss_of
from tridal.devices import registry
from tridal.pytorch.path.call import CALLS
from tridal.pytorch.torch import private
from tridal.runtime import launch
from tridal.runtime.specialization import KernelCall

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def served(no_calls: None) -> Iterator[None]:
    """The interpreter serves CPU tensors, and no call is known."""
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


def soft(t: dict[str, Tensor], **options: Any) -> Any:
    return tridal.softmax(t["x"], **options)


FUNCTIONS = (soft, rms, layer, entropy)
OPTIONS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "softmax": soft,
    "softmax-masked": lambda t: soft(t, scale=0.5, mask=t["residual"].detach() > -1, causal=True, masked_rows="zero"),
    "rms": rms,
    "rms-residual": lambda t: rms(t, residual=t["residual"]),
    "rms-two-dims": lambda t: tridal.rms_norm(t["x"], (6, 16), t["residual"]),
    "layer": layer,
    "layer-autocast": lambda t: layer({**t, "x": t["x"].bfloat16()}),
    "entropy": entropy,
    "entropy-smooth": lambda t: entropy(t, label_smoothing=0.1),
    "entropy-weight": lambda t: tridal.cross_entropy(t["x"], t["target"].clamp(0), t["classes"], ignore_index=7),
    "entropy-lse": lambda t: entropy(t, return_lse=True),
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
def test_calls_without_gradients_write_only_the_results(grad: bool, planned: list[KernelCall]) -> None:
    tensors = make(grad=grad)
    for _ in range(2):
        rms(tensors)
        rms(tensors, residual=tensors["residual"])
        rms(tensors, residual=tensors["x"])  # a tensor is given twice
        layer(tensors)
        entropy(tensors)
        soft(tensors)
    rms_statistics, layer_statistics = ({"inverse_rms"}, {"mean", "inverse_deviation"}) if grad else (set(), set())
    assert [{*call.kernel.writes, *call.kernel.row_writes} for call in planned] == [
        {"rms_norm"} | rms_statistics,
        {"rms_norm", "residual_sum"} | rms_statistics,
        {"layer_norm"} | layer_statistics,
        {"loss", "lse"} if grad else {"loss"},
        {"weighted_mean", "weight_sum"} if grad else {"weighted_mean"},
        {"softmax"},
    ]


def test_an_undefined_gradient_gives_no_gradients() -> None:
    class Blocked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return None

    for function in FUNCTIONS:
        for _ in range(2):
            tensors = make()
            (Blocked.apply(function(tensors)).sum() + tensors["residual"].sum()).backward()
            assert tensors["residual"].grad is not None
            assert all(tensor.grad is None for name, tensor in tensors.items() if name != "residual")


def test_with_batch_invariance_gradients_do_not_change_the_kernel(planned: list[KernelCall]) -> None:
    with tridal.use(device="interpreter", batch_invariant=True):
        for grad in (False, True):
            tensors = make(grad=grad)
            for function in FUNCTIONS:
                function(tensors)
    assert planned
    assert all(call.kernel.row_writes for call in planned if call.kernel.name != "softmax")


@pytest.mark.parametrize(("clear", "kept"), [(CALLS.clear, 1), (registry.invalidate, 0)])
def test_a_call_that_is_made_during_a_change_of_the_registry_is_not_kept(
    clear: Callable[[], None], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another backend may serve the tensors afterwards."""
    tensors, prepare = make(grad=False), launch.prepare
    rms(tensors)
    monkeypatch.setattr(launch, "prepare", lambda *given: clear() or prepare(*given))
    rms(tensors, residual=tensors["residual"])
    assert len(CALLS) == kept


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_repeated_calls_return_the_results_of_the_first(
    name: str, grad: bool, planned: list[KernelCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = make(grad=grad)
    context: AbstractContextManager[Any] = nullcontext()
    if name == "layer-autocast":
        monkeypatch.setattr(private, "autocasts", lambda *_: True)
        context = torch.autocast("cpu")
    with context:
        first = results_of(OPTIONS[name], tensors)
        kept, launches = len(CALLS), len(planned)
        again = results_of(OPTIONS[name], tensors)
        assert (len(CALLS), len(planned)) == (kept, launches)
        assert frames_to_launch(lambda: OPTIONS[name](tensors))[1] < 16  # those that check arguments need more
    for expected, found in zip(first, again, strict=True):
        assert (expected is None) == (found is None)
        if expected is not None and found is not None:
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
            assert (found.requires_grad, found.stride()) == (expected.requires_grad, expected.stride())


@each_kind("this test with an op that is declared in the same way, and test_autograd.py::test_gradcheck")
def test_repeated_calls_have_derivatives_of_higher_order_and_keep_no_tensors_alive(sample: Sample) -> None:
    gc.freeze()  # gc.collect() then searches the objects of this test
    for _ in range(3):
        tensors = sample.leaves(3, 5)
        leaves = [tensor for tensor in tensors.values() if tensor.requires_grad]
        found, expected = (
            torch.autograd.grad(loss_of(function(**tensors)), leaves, create_graph=True)
            for function in (sample.function, sample.expected)
        )
        torch.testing.assert_close(found, expected)
        second = (torch.autograd.grad(loss_of(g), leaves, retain_graph=True) for g in (found[:1], expected[:1]))
        torch.testing.assert_close(*second)
        references = [weakref.ref(tensor) for tensor in tensors.values()]
        del tensors, leaves, found, expected, second
        gc.collect()
        assert not any(reference() is not None for reference in references)
