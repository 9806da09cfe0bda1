"""Times of calls: measures several calls in turn, in one time window, and repeats all of them if one is noisy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch

ATTEMPTS = 3
ROUNDS = 8
_MUCH_SLOWER = 1.1  # ratio of two attempts
_ROUND_MS, _WARMUP_MS = 12.5, 3.0  # of a call on an accelerator
_CPU_ROUND_SECONDS = 0.006  # minimum duration of a round on a CPU
_FILLER_BYTES, _HOST_TIME_CALLS = 256 << 20, 5
_HOST_LEAD = 2  # ratio of the accelerator's work before a call to the host time of the call

_Key = TypeVar("_Key")
Call: TypeAlias = Callable[[], Any]
Sample: TypeAlias = Callable[[], Sequence[float]]
"""Measures one round of a call, and returns the times of its calls."""


class Timing(NamedTuple):
    """Median, 20% and 80% quantile of the time per call. Times of calls are in milliseconds, host times in us."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Timing:
        """Summarizes the times of at least one call."""
        if len(times) == 1:
            return cls(times[0], times[0], times[0])
        low, *_, high = statistics.quantiles(times, n=5, method="inclusive")
        return cls(statistics.median(times), low, high)


@dataclass(frozen=True, slots=True)
class NoiseLimit:
    """The spread of a reliable timing, 80% minus 20% quantile, is at most `relative` * median + `absolute`."""

    relative: float
    absolute: float = 0.0

    def excess(self, timing: Timing) -> float:
        """The spread divided by the limit. A timing with a ratio above 1 is noisy."""
        return (timing.high - timing.low) / (self.relative * timing.median + self.absolute)

    def __str__(self) -> str:
        return f"{self.relative:.0%} of the median" + (" + 1 us" if self.absolute else "")


def noise_limit(accelerated: bool) -> NoiseLimit:
    """The times of a CPU may spread more than those of an accelerator."""
    return NoiseLimit(0.05 if accelerated else 0.25, absolute=1e-3)


def compare(samples: Mapping[_Key, Sample], limit: NoiseLimit, rounds: int = ROUNDS) -> dict[_Key, Timing | str]:
    """Measures calls in turn, round by round, so that a disturbance affects all of them.

    Repeats the whole comparison up to `ATTEMPTS` times while one of the timings is noisy. Other processes only make
    calls slower, so an attempt that is much slower than another one is not used. Of the others, returns the one whose
    noisiest timing is the least noisy. A call that raises an exception gets the exception's message, not a timing.
    """
    failed: dict[_Key, str] = {}
    attempts: list[tuple[float, float, dict[_Key, Timing]]] = []  # (mean time, excess of the noisiest timing, timings)
    for _ in range(ATTEMPTS):
        found = _measure_in_turn(samples, rounds, failed)
        if not found:
            return {name: failed[name] for name in samples}
        mean = statistics.geometric_mean(timing.median for timing in found.values())
        attempts.append((mean, max(map(limit.excess, found.values())), found))
        fastest = min(mean for mean, _, _ in attempts)
        usable = [attempt for attempt in attempts if attempt[0] <= _MUCH_SLOWER * fastest]
        _, excess, best = min(usable, key=lambda attempt: attempt[1])
        if excess <= 1:
            break
    return {name: failed[name] if name in failed else best[name] for name in samples}


def _measure_in_turn(samples: Mapping[_Key, Sample], rounds: int, failed: dict[_Key, str]) -> dict[_Key, Timing]:
    times: dict[_Key, list[float]] = {name: [] for name in samples if name not in failed}
    for index in range(rounds):
        for name in list(times)[:: -1 if index % 2 else 1]:  # in both orders, so that each follows different calls
            found, problem = attempt(samples[name])
            if problem is None:
                times[name] += found or ()
            else:
                failed[name] = problem
                del times[name]
    return {name: Timing.of(found) for name, found in times.items()}


def attempt(function: Callable[..., Any], *arguments: Any) -> tuple[Any, str | None]:
    """Calls a function. The pair has its result or the message of an exception, and None for the other."""
    try:
        return function(*arguments), None
    except Exception as error:
        first_line, *_ = str(error).strip().splitlines() or ["no message"]
        return None, f"{type(error).__name__}: {first_line[:200]}"


def is_accelerator(device: torch.device) -> bool:
    """Tells whether the device has the type of torch's current accelerator."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found is not None and found.type == device.type


def current_device(device: torch.device) -> AbstractContextManager[Any]:
    """Makes an accelerator the current device in a context, which does nothing for other devices."""
    if device.index is None or not is_accelerator(device):
        return nullcontext()
    return torch.get_device_module(device.type).device(device.index)  # type: ignore[no-any-return]


def sampler(device: torch.device) -> Callable[[Call], list[float]]:
    """Makes a function that calls its argument during one round and gives the times in milliseconds.

    On an accelerator, it flushes the L2 cache before each call. The times exclude waiting for the host.
    """
    return partial(_sample_on_accelerator, device) if is_accelerator(device) else _sample_on_cpu


def _sample_on_accelerator(device: torch.device, call: Call) -> list[float]:
    from triton.testing import do_bench

    filler = torch.empty(_FILLER_BYTES, dtype=torch.int8, device=device)
    host_seconds, _ = _host_and_device_seconds(call)
    _, filler_seconds = _host_and_device_seconds(filler.zero_)
    fill_count = int(_HOST_LEAD * host_seconds / filler_seconds)
    hook = _BeforeCall(lambda: [filler.zero_() for _ in range(fill_count)])
    times: list[float] = do_bench(call, _WARMUP_MS, _ROUND_MS, grad_to_none=[hook], return_mode="all")
    return times


def _host_and_device_seconds(call: Call) -> tuple[float, float]:
    """Measures how long a few calls keep the host busy, and when the device has finished them."""
    call()
    torch.accelerator.synchronize()
    start = time.perf_counter()
    for _ in range(_HOST_TIME_CALLS):
        call()
    enqueued = time.perf_counter()
    torch.accelerator.synchronize()
    return enqueued - start, time.perf_counter() - start


class _BeforeCall:
    """Replaces a tensor in do_bench's `grad_to_none`. Enqueues work when do_bench resets the gradient.

    do_bench resets the gradient before each call. Without this work, a fast device finishes the cache flush before the
    host has enqueued the call. The measured time would then include waiting for the host.
    """

    def __init__(self, enqueue: Call) -> None:
        self._enqueue = enqueue

    grad = property(fset=lambda self, _: self._enqueue())


def _sample_on_cpu(call: Call) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + _CPU_ROUND_SECONDS
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def sample_host(device: torch.device, call: Call, calls: int) -> list[float]:
    """Measures how long a call keeps the host busy: the mean of several calls in microseconds, in a list."""
    if is_accelerator(device):
        torch.accelerator.synchronize()  # empties the queue, because a full queue blocks the host
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return [(time.perf_counter() - start) / calls * 1e6]
