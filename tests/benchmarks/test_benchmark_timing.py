"""Tests of the comparison of calls: interleaving, repetition and noise, with a clock that only the calls advance."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import Any

import pytest
import torch

from tridal.benchmarks import measuring, timing
from tridal.benchmarks.timing import NoiseLimit, Timing, compare

LIMIT = NoiseLimit(0.25)
QUIET, NOISY = [1.0] * 10, [1.0] * 7 + [9.0] * 3


class Clock:
    """Replaces the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(timing, "time", found)
    return found


def taking(clock: Clock, *seconds: float) -> Callable[[], None]:
    """Returns a call that takes these times, again and again."""
    durations = cycle(seconds)

    def call() -> None:
        clock.now += next(durations)

    return call


def attempts(*rounds: list[float]) -> Callable[[], list[float]]:
    """Returns a sample with the times of each attempt. All rounds of an attempt are equal."""
    times: Iterator[list[float]] = iter([found for found in rounds for _ in range(timing.ROUNDS)])
    return lambda: next(times)


def test_times_are_in_milliseconds(clock: Clock) -> None:
    sample = timing.sampler(torch.device("cpu"))
    assert sample(taking(clock, 0.25)) == [pytest.approx(250.0)]
    assert len(sample(taking(clock, timing._CPU_ROUND_SECONDS / 4.5))) == 5
    assert timing.sample_host(torch.device("cpu"), taking(clock, 1e-6, 3e-6), 4) == [pytest.approx(2.0)]


def test_calls_are_measured_in_turn_and_in_both_orders() -> None:
    order: list[str] = []

    def sample(name: str) -> list[float]:
        order.append(name)
        return [1.0]

    compare({name: partial(sample, name) for name in "abc"}, LIMIT, rounds=4)
    assert order == [*"abccbaabccba"]


def test_quiet_comparison_is_not_repeated() -> None:
    assert compare({"a": attempts(QUIET), "b": attempts([2.0])}, LIMIT) == {"a": (1.0,) * 3, "b": (2.0,) * 3}


def test_noise_of_one_call_repeats_the_whole_comparison() -> None:
    found = compare({"a": attempts(NOISY, QUIET), "b": attempts([2.0], [2.1])}, LIMIT)
    assert found == {"a": (1.0,) * 3, "b": (2.1,) * 3}, "both from the second attempt"


def test_noise_in_all_attempts_returns_the_least_noisy_one() -> None:
    least = [1.0] * 7 + [2.0] * 3
    found = compare({"a": attempts(NOISY, least, NOISY)}, LIMIT)
    assert found == {"a": (1.0, 1.0, 2.0)}
    assert isinstance(found["a"], Timing)
    assert LIMIT.excess(found["a"]) > 1


def test_attempt_that_is_uniformly_slow_is_not_used() -> None:
    """A machine that is busy all the time has little spread. The faster attempt shows that it was busy."""
    found = compare({"a": attempts(NOISY, [50.0], NOISY)}, LIMIT)
    assert found == {"a": (1.0, 1.0, 9.0)}


def test_call_that_raises_an_exception_is_skipped_in_later_rounds() -> None:
    calls = iter([[1.0], ValueError("out of memory")])

    def failing() -> list[float]:
        found = next(calls)
        if isinstance(found, Exception):
            raise found
        return found

    found = compare({"a": failing, "b": attempts(QUIET)}, LIMIT)
    assert found == {"a": "ValueError: out of memory", "b": (1.0,) * 3}


def test_host_time_is_not_measured_on_an_accelerator(module: Any, device: torch.device) -> None:
    small = torch.empty(8, device=device)

    def delayed() -> None:
        time.sleep(5e-3)
        small.zero_()

    assert measuring.timer(device)(delayed).median < 2.5
