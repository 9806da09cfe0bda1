"""`tridal.use`: nested blocks, threads, async tasks, and the settings that it makes."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from backend_helpers import at_the_same_time
from tridal.devices import settings
from tridal.devices.settings import Settings, current, use


@pytest.fixture(autouse=True)
def folder(no_settings):
    """The working folder, which is empty."""
    return no_settings


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_use_blocks_may_end_in_any_order(order):
    before = current()

    def generate(device: str) -> Iterator[Settings]:
        with use(device=device):
            yield current()

    generators = [generate(f"d{number}") for number in range(3)]
    assert [next(generator).device for generator in generators] == ["d0", "d1", "d2"]
    active = [0, 1, 2]
    for number in order:
        generators[number].close()
        active.remove(number)
        assert current().device == (f"d{active[-1]}" if active else before.device)
    assert current() is before


def test_equal_use_gives_the_same_object_and_the_cache_is_bounded():
    def settings_in_use(**given: object) -> Settings:
        with use(**given):
            return current()

    assert settings_in_use(device="a") is settings_in_use(device="a")
    assert settings_in_use(backends={"npu": {"x": 1}}) is not settings_in_use(backends={"npu": {"x": True}})
    assert len({settings_in_use(device=f"d{i}") for i in range(500)}) == 500
    assert len(settings._overlays) <= 64


def test_use_applies_only_to_its_thread():
    barrier = threading.Barrier(4)

    def read_device(number: int) -> list[str]:
        before = current().device
        with use(device=f"d{number}"):
            barrier.wait(timeout=10)
            inside = current().device
            barrier.wait(timeout=10)
        return [before, inside, current().device]

    with use(device="main"):
        found = at_the_same_time(*(partial(read_device, number) for number in range(4)))
    assert found == [["auto", f"d{number}", "auto"] for number in range(4)]


def test_use_applies_only_to_its_async_task_and_the_tasks_started_inside():
    async def task(name: str, ready: asyncio.Event, go: asyncio.Event) -> tuple[str, str]:
        outer = current().device
        with use(device=name):
            ready.set()
            await go.wait()
            return outer, current().device

    async def main() -> list[tuple[str, str]]:
        events = [asyncio.Event() for _ in range(3)]
        with use(device="outer"):
            first = asyncio.create_task(task("a", events[0], events[2]))
            second = asyncio.create_task(task("b", events[1], events[2]))
        await events[0].wait()
        await events[1].wait()
        assert current().device == "auto"
        events[2].set()
        return [await first, await second]

    assert asyncio.run(main()) == [("outer", "a"), ("outer", "b")]
