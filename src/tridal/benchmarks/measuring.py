"""How it is measured: medians and quantiles of a call, after its result was compared with torch's."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from tridal.benchmarks.points import Point
from tridal.benchmarks.providers import COPY, Function, Provider, reference
from tridal.testing.tolerance import UNIT

_LOW, _HIGH = 0.2, 0.8
_OCCUPYING, _TRIES = 256 << 20, 5  # bytes that are written to occupy an accelerator, and how often that is tried
_AHEAD = 2  # times as long as the host takes for a call an accelerator is occupied before it
_CPU_SECONDS, _CPU_CALLS = 0.05, 7  # a CPU's measurement lasts as long, and takes at least so many calls
_HOST_SHAPE, _HOST_CALLS, _HOST_ROUNDS = (8, 128), 200, 15
_UNITS = 16  # a provider may be off by so many roundings of the largest result, and is wrong beyond


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of a call: median, 20% and 80% quantile."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """What came of one provider at one point; `timing` is None where it was left out, for the reason in `skipped`."""

    point: Point
    provider: str
    timing: Timing | None
    copy: Timing
    """`y.copy_(x)` on contiguous tensors of the shape, in the same run."""
    skipped: str | None = None

    @property
    def rate(self) -> float | None:
        """Useful traffic in GB/s."""
        if self.timing is None:
            return None
        return (self.point.copied if self.provider == COPY else self.point.bytes) / self.timing.median * 1e-6

    @property
    def share(self) -> float | None:
        """Rate over the rate of `copy_`."""
        return None if self.rate is None else self.rate / (self.point.copied / self.copy.median * 1e-6)


def is_accelerator(device: torch.device) -> bool:
    """Whether torch's accelerator is of this type, and has streams and events to measure with."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found is not None and found.type == device.type


def timer(device: torch.device) -> Callable[[Callable[[], Any]], Timing]:
    """What measures a function of no arguments on the device.

    An accelerator's L2 cache is flushed between calls, and the host is given time to make them.
    """
    if not is_accelerator(device):
        return _on_cpu
    return functools.partial(_on_accelerator, device)


def _on_accelerator(device: torch.device, function: Callable[[], Any]) -> Timing:
    from triton.testing import do_bench

    occupier = torch.empty(_OCCUPYING, dtype=torch.int8, device=device)
    host, _ = _seconds(function)
    _, occupied = _seconds(occupier.zero_)
    times = int(_AHEAD * host / occupied)
    pause = _Pause(lambda: [occupier.zero_() for _ in range(times)])
    return Timing(*do_bench(function, quantiles=[0.5, _LOW, _HIGH], grad_to_none=[pause]))


def _seconds(work: Callable[[], Any]) -> tuple[float, float]:
    """How long a few calls keep the host, and how long it takes until the device has done them."""
    work()
    torch.accelerator.synchronize()
    start = time.perf_counter()
    for _ in range(_TRIES):
        work()
    called = time.perf_counter()
    torch.accelerator.synchronize()
    return called - start, time.perf_counter() - start


class _Pause:
    """To do_bench a tensor whose gradient it drops before each call. That is when this enqueues work.

    Or the device may be done with flushing its cache before the host has made the call, and seem slow, as it waits.
    """

    def __init__(self, enqueue: Callable[[], Any]) -> None:
        self._enqueue = enqueue

    grad = property(fset=lambda self, _: self._enqueue())


def _on_cpu(function: Callable[[], Any]) -> Timing:
    function()
    times: list[float] = []
    end = time.perf_counter() + _CPU_SECONDS
    while len(times) < _CPU_CALLS or time.perf_counter() < end:
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e3)
    fifths = statistics.quantiles(times, n=5)
    return Timing(statistics.median(times), fifths[0], fifths[-1])


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Makes an accelerator the current one."""
    if device.index is None or not is_accelerator(device):
        return nullcontext()
    return torch.get_device_module(device.type).device(device.index)  # type: ignore[no-any-return]


def measure(point: Point, providers: Sequence[Provider], device: torch.device) -> Iterator[Measurement]:
    """Measures `copy_` and then every provider at one point; what a provider raises is why it is left out."""
    timed = timer(device)
    with current(device):
        x, grad = tensors(point, device)
        copy = timed(functools.partial(torch.empty_like(grad).copy_, grad))
        yield Measurement(point, COPY, copy, copy)
        for provider in providers:
            try:
                timing = _measure(point, provider, x, grad, timed)
            except Exception as error:
                yield Measurement(point, provider.name, None, copy, skipped=reason(error))
            else:
                yield Measurement(point, provider.name, timing, copy)


def tensors(point: Point, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The input, and a contiguous gradient of its shape."""
    dtype = getattr(torch, point.dtype)
    wide = (*point.shape[:-1], point.cols + 4) if point.slice else point.shape
    x = torch.randn(wide, device=device, dtype=dtype)
    return (x[..., 1 : 1 + point.cols] if point.slice else x), torch.randn(point.shape, device=device, dtype=dtype)


def _measure(
    point: Point, provider: Provider, x: torch.Tensor, grad: torch.Tensor, timed: Callable[[Callable[[], Any]], Timing]
) -> Timing:
    with (
        torch.set_grad_enabled(point.direction == "backward"),
        # A backward in this thread: waking one of torch's own for each may take longer than the flush of the cache.
        torch.autograd.set_multithreading_enabled(False),
        provider.using(point.op, point.dim) as function,
    ):
        call = _call(point, function, x, grad)
        if difference := _difference(point, call(), x, grad):
            raise ArithmeticError(f"wrong by {difference:.2g} of the largest result")
        return timed(call)


def _call(point: Point, function: Function, x: torch.Tensor, grad: torch.Tensor) -> Callable[[], torch.Tensor]:
    if point.direction == "forward":
        return lambda: function(x)
    leaf = x.detach().requires_grad_()
    y = function(leaf)
    return lambda: torch.autograd.grad(y, leaf, grad, retain_graph=True)[0]


def _difference(point: Point, got: torch.Tensor, x: torch.Tensor, grad: torch.Tensor) -> float | None:
    """Largest difference to torch as a share of the largest result, where that is more than roundings explain."""
    leaf = x.detach().requires_grad_(point.direction == "backward")
    exact = reference(point.op, leaf, point.dim)
    if point.direction == "backward":
        (exact,) = torch.autograd.grad(exact, leaf, grad.to(exact.dtype))
    largest = exact.detach().abs().max()
    share = float((got - exact).abs().max() / largest)
    return None if share <= _UNITS * max(UNIT[point.dtype], 2.0**-20) else share


def host_times(provider: Provider, device: torch.device, op: str, grad: bool) -> Timing:
    """Microseconds that a call on 8 x 128 keeps the host busy, in a Timing."""
    with current(device), provider.using(op, -1) as function:
        x = torch.randn(_HOST_SHAPE, device=device, requires_grad=grad)
        with torch.set_grad_enabled(grad):
            return _host_loop(function, x, is_accelerator(device))


def _host_loop(function: Function, x: torch.Tensor, accelerated: bool) -> Timing:
    rounds = []
    for _ in range(_HOST_ROUNDS + 1):  # the first one compiles and warms up
        if accelerated:
            torch.accelerator.synchronize()  # so that the device is idle, and its queue never full
        start = time.perf_counter()
        for _ in range(_HOST_CALLS):
            function(x)
        rounds.append((time.perf_counter() - start) / _HOST_CALLS * 1e6)
    fifths = statistics.quantiles(rounds[1:], n=5)
    return Timing(statistics.median(rounds[1:]), fifths[0], fifths[-1])


def reason(error: Exception) -> str:
    """An exception in one short line."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else "no message"
    return f"{type(error).__name__}: {text[:200]}"
