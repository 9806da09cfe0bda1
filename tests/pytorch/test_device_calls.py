"""Calls on every backend: how often they are planned, in threads, on several devices, and with other allocators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from op_samples import Sample, each_kind, loss_of
from tridal.devices import registry
from tridal.ops import Op
from tridal.pytorch.path.call import CALLS
from tridal.pytorch.torch import private
from tridal.runtime.specialization import KernelCall

EACH_KIND = each_kind("this test with an op that is declared in the same way")
FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "softmax": (tridal.softmax, lambda x: torch.softmax(x, -1)),
    "layer_norm": (
        lambda x: tridal.layer_norm(x, x.shape[-1:]),
        lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    ),
}
"""An op of one tensor and one of several, with torch's function."""


@pytest.fixture(params=FUNCTIONS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@EACH_KIND
def test_equal_calls_are_planned_once(device: torch.device, sample: Sample, planned: list[KernelCall]) -> None:
    kernels = []
    for _ in range(4):
        loss_of(sample.function(**sample.leaves(3, 5, device=device))).backward()
        kernels.append([call.kernel.name for call in planned])
    assert kernels[1:] == kernels[:1] * 3
    assert sample.op.steps or {*kernels[0]} - {"column_sum"} == {sample.op.name, f"{sample.op.name}_backward"}


@pytest.mark.usefixtures("no_calls")
def test_the_first_call_finds_what_its_gradient_needs_for_all_later_ones(
    name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Op] = []
    save = Op.save
    monkeypatch.setattr(Op, "save", lambda self, *given: found.append(self) or save(self, *given))
    for _ in range(3):
        x = torch.randn(3, 5, device=device, requires_grad=True)
        FUNCTIONS[name][0](x).sum().backward()
    assert len(found) == 1


LOSSES: dict[str, dict[str, Any]] = {
    "mean": {}, "sum": {"reduction": "sum"}, "none": {"reduction": "none"}, "weight": {"weight": torch.rand(7)},
    "smoothed": {"label_smoothing": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("options", LOSSES.values(), ids=LOSSES)
def test_a_loss_is_right_for_rows_on_both_sides_of_a_bucket(
    device: torch.device, planned: list[KernelCall], options: dict[str, Any]
) -> None:
    """Kernels that reduce the losses of rows read them as one row, and are planned for their number only."""
    options = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    seen: list[torch.Tensor] = []
    for rows in (20, 32, 1, 2, 16, 33, 34, 64, 63, 48, 65, 68, 66, 69):
        x = torch.randn(rows, 7, device=device, dtype=torch.float64, requires_grad=True)
        target = x.detach().argmax(1)
        given = {name: value.double() if name == "weight" else value for name, value in options.items()}
        found, expected = (f(x, target, **given) for f in (tridal.cross_entropy, torch.nn.functional.cross_entropy))
        assert_close(found, expected)
        for result in (found, expected):
            seen.append(torch.autograd.grad(result.sum(), x)[0])
        assert_close(*seen[-2:])
    del planned[:]
    for rows in (20, 66, 48, 64):
        x = torch.randn(rows, 7, device=device, dtype=torch.float64, requires_grad=True)
        target = x.detach().argmax(1)
        tridal.cross_entropy(x, target, **given).sum().backward()
    assert not planned


@pytest.mark.usefixtures("no_calls")
def test_numbers_of_rows_in_a_bucket_share_a_call(device: torch.device, name: str) -> None:
    function, reference = FUNCTIONS[name]
    for rows in (1025, 1030, 1088, 1040):
        x = torch.randn(rows, 128, device=device)
        assert_close(function(x), reference(x))
    assert len(CALLS) == 1


class SeveralDevices:
    """A backend with two devices, which counts how often one is made the current device."""

    def __init__(self, backend: Any) -> None:
        self._backend, self.name, self.guarded = backend, "several", 0

    def __getattr__(self, member: str) -> Any:
        return getattr(self._backend, member)

    def device_count(self) -> int:
        return 2

    @contextmanager
    def guard(self, index: int) -> Iterator[None]:
        self.guarded += 1
        with self._backend.guard(index):
            yield


def test_a_launch_makes_its_device_current_if_there_are_several(backend: Any) -> None:
    several = SeveralDevices(backend)
    registry.register(several)
    try:
        with tridal.use(device="several"):
            x = torch.randn(3, 5, device=tridal.device(), requires_grad=True)
            for _ in range(4):
                before = several.guarded
                tridal.softmax(x).sum().backward()
                assert several.guarded >= before + 2
    finally:
        registry.unregister("several")


@pytest.mark.usefixtures("no_calls")
@pytest.mark.parametrize("make", [None, lambda *_: torch.empty(2, 3, device="meta"), lambda *_: torch.empty(3, 2).T])
def test_results_are_allocated_without_torchs_private_allocator(
    make: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is missing, or it returns another tensor than it was asked for."""
    monkeypatch.setattr(private, "GUARDS", SimpleNamespace(**{f"_empty_strided_{device.type}": make}))
    private.allocator.cache_clear()
    x = torch.randn(6, 5, device=device)
    assert_close(tridal.softmax(x.T), torch.softmax(x.T, -1))
    assert private.allocator(device) is None
    monkeypatch.undo()
    private.allocator.cache_clear()
