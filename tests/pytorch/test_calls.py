"""Calls: what their kernels write, which are kept, and where their launches and results are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from conformance_helpers import INTERPRETER, registered
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
    if INTERPRETER.unavailable():
        pytest.skip("needs the interpreter")
    torch.manual_seed(0)
    with tridal.use(device="interpreter"):
        yield


def make(grad: bool = True) -> dict[str, Tensor]:
    """The tensors of a call, all of them new."""
    sizes = {"x": (6, 16), "residual": (6, 16), "weight": (16,), "bias": (16,)}
    made = {name: torch.randn(size).requires_grad_(grad) for name, size in sizes.items()}
    return made | {"target": torch.tensor([3, -100, 0, 15, 7, 7])}


def rms(t: dict[str, Tensor], **options: Any) -> Any:
    return tridal.rms_norm(t["x"], (16,), t["weight"], 1e-5, **options)


FUNCTIONS: tuple[Callable[[dict[str, Tensor]], Any], ...] = (
    rms, lambda t: tridal.layer_norm(t["x"], [16], t["weight"], t["bias"]),
    lambda t: tridal.cross_entropy(t["x"] * 1, t["target"]), lambda t: tridal.softmax(t["x"]),
)  # fmt: skip


@pytest.mark.parametrize("grad", [False, True])
def test_calls_without_gradients_write_only_the_results(grad: bool, planned: list[KernelCall]) -> None:
    tensors = make(grad)
    for _ in range(2):
        rms(tensors, residual=tensors["residual"])
        rms(tensors, residual=tensors["x"])  # a tensor is given twice
        for function in FUNCTIONS:
            function(tensors)
    rms_statistics, layer_statistics = ({"inverse_rms"}, {"mean", "inverse_deviation"}) if grad else (set(), set())
    assert [{*call.kernel.writes, *call.kernel.row_writes} for call in planned] == [
        {"rms_norm", "residual_sum"} | rms_statistics,
        {"rms_norm"} | rms_statistics,
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

    for function in FUNCTIONS * 2:
        tensors = make()
        (Blocked.apply(function(tensors)).sum() + tensors["residual"].sum()).backward()
        assert tensors["residual"].grad is not None
        assert all(tensor.grad is None for name, tensor in tensors.items() if name != "residual")


def test_with_batch_invariance_gradients_do_not_change_the_kernel(planned: list[KernelCall]) -> None:
    with tridal.use(device="interpreter", batch_invariant=True):
        for grad in (False, True):
            for function in FUNCTIONS:
                function(make(grad))
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


class SeveralDevices:
    """The interpreter with two devices. It counts how often one is made the current device."""

    name, guarded = "several", 0

    def __getattr__(self, member: str) -> Any:
        return getattr(INTERPRETER, member)

    def device_count(self) -> int:
        return 2

    @contextmanager
    def guard(self, index: int) -> Iterator[None]:
        self.guarded += 1
        with INTERPRETER.guard(index):
            yield


def test_a_launch_makes_its_device_current_if_there_are_several() -> None:
    several = SeveralDevices()
    with registered(several), tridal.use(device="several"):
        x = torch.randn(3, 5, requires_grad=True)
        for _ in range(4):
            before = several.guarded
            tridal.softmax(x).sum().backward()
            assert several.guarded >= before + 2


@pytest.mark.parametrize("make", [None, lambda *_: torch.empty(2, 3, device="meta"), lambda *_: torch.empty(3, 2).T])
def test_results_are_allocated_without_torchs_private_allocator(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is missing, or it returns another tensor than it was asked for."""
    monkeypatch.setattr(private, "GUARDS", SimpleNamespace(_empty_strided_cpu=make))
    private.allocator.cache_clear()
    x = torch.randn(6, 5)
    assert_close(tridal.softmax(x.T), torch.softmax(x.T, -1))
    assert private.allocator(x.device) is None
    monkeypatch.undo()
    private.allocator.cache_clear()
