"""Prepared calls: which calls share one, how long they are kept, and how they use devices and allocators."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from tridal.devices import registry
from tridal.pytorch import prepared, private
from tridal.pytorch.device_context import device_context
from tridal.runtime import launch


@pytest.fixture
def prepared_calls(nothing_prepared: None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The kernel calls that the test prepares. Nothing is prepared before."""
    calls: list[Any] = []
    prepare = launch.prepare
    monkeypatch.setattr(launch, "prepare", lambda call, *a: calls.append(call) or prepare(call, *a))
    return calls


def test_equal_calls_are_prepared_once(device: torch.device, prepared_calls: list[Any]) -> None:
    x = torch.randn(3, 5, device=device, requires_grad=True)
    for _ in range(3):
        tridal.softmax(x).sum().backward()
        tridal.softmax(torch.randn(3, 5, device=device))
    assert [call.kernel.name for call in prepared_calls] == ["softmax", "softmax_backward"]


@pytest.mark.parametrize(
    "other",
    [
        lambda x: tridal.log_softmax(x),
        lambda x: tridal.softmax(x, 0),
        lambda x: tridal.softmax(x, -1, torch.float64),
        lambda x: tridal.softmax(x.half()),
        lambda x: tridal.softmax(x.t().contiguous().t()),
        lambda x: tridal.softmax(x[:-1]),
        lambda x: tridal.softmax(torch.cat([x.flatten(), x.flatten()])[1:].as_strided((4, 6), (6, 1))),
    ],
    ids=["op", "dim", "cast", "dtype", "strides", "shape", "alignment"],
)
def test_a_call_that_differs_in_one_trait_is_prepared_again(
    device: torch.device, prepared_calls: list[Any], other: Any
) -> None:
    x = torch.randn(4, 6, device=device)
    tridal.softmax(x)
    assert len(prepared_calls) == 1
    other(x)
    assert len(prepared_calls) == 2


def test_a_call_with_other_settings_is_prepared_again(backend: Any, prepared_calls: list[Any]) -> None:
    for _ in range(2):
        for fallback in ("torch", "error"):
            with tridal.use(device=backend.name, fallback=fallback):
                tridal.softmax(torch.randn(3, 5, device=tridal.device()))
    assert len(prepared_calls) == 2


def test_the_number_of_kept_calls_is_limited(device: torch.device, prepared_calls: list[Any]) -> None:
    device_context(torch.empty(1, device=device).device).forwards.capacity = 4
    for rows in range(1, 11):
        x = torch.randn(rows, 5, device=device)
        assert_close(tridal.softmax(x), torch.softmax(x, -1))
    assert len(prepared_calls) == 10
    assert len(device_context(x.device).forwards) <= 4


def test_threads_prepare_and_run_calls_at_the_same_time(
    device: torch.device, prepared_calls: list[Any], backend: Any
) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with tridal.use(device=backend.name):
                for rows in range(1, 9):
                    x = torch.randn(rows, 5, device=device, requires_grad=True)
                    y = tridal.softmax(x)
                    assert_close(y, torch.softmax(x, -1))
                    y.sin().sum().backward()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


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
            before = several.guarded
            tridal.softmax(x).sum().backward()
            assert several.guarded >= before + 2
    finally:
        registry.unregister("several")


@pytest.mark.usefixtures("nothing_prepared")
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


def test_dtype_name_has_no_prefix() -> None:
    assert [prepared.dtype_name(dtype) for dtype in (torch.float16, torch.int64)] == ["float16", "int64"]
