"""Prepared calls: which calls use one, and that their results are those of the first call."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

import tridal
from op_samples import Sample, each_kind, loss_of
from tridal.devices import registry
from tridal.pytorch.path import calls, nodes
from tridal.pytorch.torch import private
from tridal.runtime import launch

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


def soft(t: dict[str, Tensor], **options: Any) -> Any:
    return tridal.softmax(t["x"], **options)


FUNCTIONS = (soft, rms, layer, entropy)
CALLS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "softmax": soft,
    "softmax-masked": lambda t: soft(t, scale=0.5, mask=t["residual"].detach() > -1, causal=True, masked_rows="zero"),
    "log-softmax-bfloat16": lambda t: tridal.log_softmax(t["x"], 0, torch.bfloat16),
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


def test_calls_that_alternate_are_all_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """They differ in tensors after the first, which the key does not contain."""
    tensors = make()
    frozen = {**tensors, "weight": tensors["weight"].detach()}
    none: Any = {**tensors, "weight": None}
    expected = [rms(t) for t in (tensors, frozen, none)]
    monkeypatch.setattr("tridal.library.norms.functions.call", None)
    for t, result in zip((tensors, frozen, none), expected, strict=True):
        assert torch.equal(rms(t), result)


def test_the_latest_call_of_each_function_is_found_without_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = make()
    expected = [function(tensors) for function in FUNCTIONS]
    monkeypatch.setattr(calls, "_calls", {})
    for function, result in zip(FUNCTIONS, expected, strict=True):
        assert torch.equal(function(tensors), result)
        assert not calls._calls


def test_a_call_that_another_thread_cleared_is_not_the_latest() -> None:
    tensors = make()
    rms(tensors)
    ((found,),) = calls._calls.values()
    calls._latest.clear()
    found.guard = lambda *_: registry.invalidate() is None
    rms(tensors)
    assert not calls._latest


@pytest.mark.parametrize("grad", [False, True])
def test_calls_without_gradients_write_only_the_results(grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    written, real = [], launch.prepare

    def prepare(call: Any, *arguments: Any) -> Any:
        written.append({*call.kernel.writes, *call.kernel.row_writes})
        return real(call, *arguments)

    monkeypatch.setattr(launch, "prepare", prepare)
    tensors = make(grad=grad)
    for _ in range(2):
        rms(tensors)
        rms(tensors, residual=tensors["residual"])
        rms(tensors, residual=tensors["x"])  # cannot be prepared, because a tensor is given twice
        layer(tensors)
        entropy(tensors)
        soft(tensors)
    rms_statistics, layer_statistics = ({"inverse_rms"}, {"mean", "inverse_deviation"}) if grad else (set(), set())
    assert written == [
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


def test_with_batch_invariance_gradients_do_not_change_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, real = [], launch.prepare
    monkeypatch.setattr(launch, "prepare", lambda call, *rest: kernels.append(call.kernel) or real(call, *rest))
    with tridal.use(device="interpreter", batch_invariant=True):
        for grad in (False, True):
            tensors = make(grad=grad)
            for function in FUNCTIONS:
                function(tensors)
    assert kernels
    assert all(kernel.row_writes for kernel in kernels if kernel.name != "softmax")


@pytest.mark.parametrize(("clear", "kept"), [(calls._calls.clear, 1), (registry.invalidate, 0)])
def test_calls_that_were_cleared_during_a_preparation_do_not_come_back(
    clear: Callable[[], None], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was prepared before a change of the registry is not kept."""
    tensors, real = make(), calls.guard_call
    rms(tensors)
    monkeypatch.setattr(calls, "guard_call", lambda *given: clear() or real(*given))
    rms({**tensors, "weight": tensors["weight"].detach()})
    assert [len(prepared) for prepared in calls._calls.values()] == [1] * kept
    assert len(calls._latest) == kept


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_repeated_calls_return_the_results_of_the_first(name: str, grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = make(grad=grad)
    context: AbstractContextManager[Any] = nullcontext()
    if name == "layer-autocast":
        monkeypatch.setattr(private, "autocasts", lambda *_: True)
        context = torch.autocast("cpu")
    with context:
        first = results_of(CALLS[name], tensors)  # prepares the call, then its backward
        with monkeypatch.context() as patch:
            for module in ("library.norms.functions", "library.losses.functions", "pytorch.path.function"):
                patch.setattr(f"tridal.{module}.call", None)
            patch.setattr(calls, "gradients", None)
            patch.setattr(nodes, "gradients", None)
            again = results_of(CALLS[name], tensors)
    for expected, found in zip(first, again, strict=True):
        assert (expected is None) == (found is None)
        if expected is not None and found is not None:
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
            assert (found.requires_grad, found.stride()) == (expected.requires_grad, expected.stride())


def warm(function: Callable[[dict[str, Tensor]], Any], tensors: dict[str, Tensor]) -> None:
    """Prepares a call of a function, and its backward."""
    results_of(function, tensors)
    assert any(calls._calls.values())


@pytest.mark.parametrize(
    ("function", "without_x"),
    [(soft, 1), (rms, 4), (layer, 4), (lambda t: entropy(t, z_loss=0.1), 1)],
    ids=["softmax", "rms", "layer", "entropy"],
)
def test_prepared_calls_follow_the_state_of_later_calls(
    function: Callable[[dict[str, Tensor]], Any], without_x: int
) -> None:
    tensors = make()
    first = results_of(function, tensors)
    warm(function, tensors)
    for key, count in (("x", without_x), ("weight", 4), ("bias", 4)):  # a frozen tensor has no gradient
        for _ in range(2):
            assert len(results_of(function, {**tensors, key: tensors[key].detach()})) == count
    with torch.no_grad():
        assert not function(tensors).requires_grad
    with torch.inference_mode(), torch.enable_grad():
        assert not function(tensors).requires_grad
    with torch.autocast("cpu"):
        assert function(tensors).dtype is torch.float32
    moved = {name: torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape) for name, t in tensors.items()}
    torch.testing.assert_close(function(moved), first[0])
    strided = {**tensors, "x": tensors["x"].detach().t().contiguous().t().requires_grad_()}
    for _ in range(2):
        torch.testing.assert_close(results_of(function, strided)[0], first[0])
    batch = torch.stack([tensors["x"].detach()] * 2)
    torch.testing.assert_close(torch.func.vmap(lambda x: function({**tensors, "x": x}))(batch)[1], first[0])
    torch.testing.assert_close(results_of(function, tensors), first)


def test_other_settings_backends_and_records_apply_to_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = make(grad=False)
    warm(rms, tensors)
    with tridal.record_calls() as records:
        rms(tensors)
        with tridal.use(device="cpu"):
            rms(tensors)
        rms(tensors)
    assert [call.backend for call in records] == ["interpreter", "torch", "interpreter"]
    registry.invalidate()
    kept = calls._calls or calls._latest
    assert not kept, "another backend may serve the tensors after a change of the registry"


@each_kind("this test with an op that is declared in the same way, and test_autograd.py::test_gradcheck")
def test_prepared_calls_have_derivatives_of_higher_order_and_keep_no_tensors_alive(sample: Sample) -> None:
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
