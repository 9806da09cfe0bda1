"""Prepared calls: what decides on one, that nothing else does, and that they are kept."""

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
from tridal.pytorch import device_context as places
from tridal.pytorch import prepared as execute
from tridal.runtime import launch


@pytest.fixture
def prepared(nothing_prepared: None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that were prepared, with nothing prepared before."""
    calls: list[Any] = []
    prepare = launch.prepare
    monkeypatch.setattr(launch, "prepare", lambda call, *a: calls.append(call) or prepare(call, *a))
    return calls


def test_a_call_like_another_is_not_prepared_again(device: torch.device, prepared: list[Any]) -> None:
    x = torch.randn(3, 5, device=device, requires_grad=True)
    for _ in range(3):
        tridal.softmax(x).sum().backward()
        tridal.softmax(torch.randn(3, 5, device=device))
    assert [call.problem.op for call in prepared] == ["softmax", "softmax_backward"]


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
def test_what_makes_another_call(device: torch.device, prepared: list[Any], other: Any) -> None:
    x = torch.randn(4, 6, device=device)
    tridal.softmax(x)
    assert len(prepared) == 1
    other(x)
    assert len(prepared) == 2


def test_other_settings_make_another_call(backend: Any, prepared: list[Any]) -> None:
    for _ in range(2):
        for fallback in ("torch", "error"):
            with tridal.use(device=backend.name, fallback=fallback):
                tridal.softmax(torch.randn(3, 5, device=tridal.device()))
    assert len(prepared) == 2


def test_only_so_many_calls_are_kept(
    device: torch.device, prepared: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "_CAPACITY", 4)
    for rows in range(1, 11):
        x = torch.randn(rows, 5, device=device)
        assert_close(tridal.softmax(x), torch.softmax(x, -1))
    assert len(prepared) == 10
    assert len(places.place_of(x.device).forwards) <= 4


def test_threads_prepare_and_run_side_by_side(device: torch.device, prepared: list[Any], backend: Any) -> None:
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


class Several:
    """A backend with several devices of a type, which says when one is made current."""

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


def test_one_of_several_devices_is_made_current(backend: Any) -> None:
    several = Several(backend)
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
def test_an_allocator_of_torchs_that_does_otherwise(make: Any, device: torch.device, monkeypatch: Any) -> None:
    """It is private to torch: whatever becomes of it, results are allocated."""
    monkeypatch.setattr(execute, "GUARDS", SimpleNamespace(**{f"_empty_strided_{device.type}": make}))
    execute._maker.cache_clear()
    x = torch.randn(6, 5, device=device)
    assert_close(tridal.softmax(x.T), torch.softmax(x.T, -1))
    assert execute._maker(device) is None
    monkeypatch.undo()
    execute._maker.cache_clear()


def test_dtype_names() -> None:
    assert [execute.dtype_name(dtype) for dtype in (torch.float16, torch.int64)] == ["float16", "int64"]
