"""Timing of providers: checks each result against the op's reference, then reports a call's median and quantiles."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from tridal.benchmarks.providers import COPY, Function, Provider, reference
from tridal.benchmarks.workloads import Workload
from tridal.testing.tolerance import UNIT

_LOW, _HIGH = 0.2, 0.8
_FILLER_BYTES, _HOST_TIME_CALLS = 256 << 20, 5
_HOST_LEAD = 2  # the accelerator stays busy for this multiple of the host time of a call
_CPU_SECONDS, _CPU_CALLS = 0.05, 7  # minimum duration and number of calls of a measurement on a CPU
_HOST_SHAPE, _HOST_CALLS, _HOST_ROUNDS = (8, 128), 200, 15
_MAX_ROUNDINGS = 16  # a result is wrong if it is off by more than this many roundings of the largest value
_MIN_UNIT = 2.0**-20  # float32 and float64 results are compared with this precision

Timer: TypeAlias = Callable[[Callable[[], Any]], "Timing"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Median, 20% quantile and 80% quantile of the time per call, in milliseconds unless documented otherwise."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of one provider on one workload. If it was skipped, `timing` is None and `skipped` is the reason."""

    workload: Workload
    provider: str
    timing: Timing | None
    copy: Timing
    """Timing of `y.copy_(x)` on contiguous tensors of the same shape, in the same run."""
    skipped: str | None = None

    @property
    def rate(self) -> float | None:
        """Useful traffic in GB/s; None if skipped."""
        if self.timing is None:
            return None
        traffic = self.workload.copy_bytes if self.provider == COPY else self.workload.useful_bytes
        return traffic / self.timing.median * 1e-6

    @property
    def share(self) -> float | None:
        """`rate` divided by the rate of `copy_`; None if skipped."""
        return None if self.rate is None else self.rate / (self.workload.copy_bytes / self.copy.median * 1e-6)


def is_accelerator(device: torch.device) -> bool:
    """Returns whether the device has the type of torch's current accelerator, so that its events can be timed."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found is not None and found.type == device.type


def timer(device: torch.device) -> Timer:
    """Returns a function that times calls of a function without arguments on the device.

    On an accelerator it flushes the L2 cache before each call, and keeps the device busy until the host has enqueued
    the call. The result then excludes host time.
    """
    if not is_accelerator(device):
        return _time_on_cpu
    return functools.partial(_time_on_accelerator, device)


def _time_on_accelerator(device: torch.device, function: Callable[[], Any]) -> Timing:
    from triton.testing import do_bench

    filler = torch.empty(_FILLER_BYTES, dtype=torch.int8, device=device)
    host_seconds, _ = _host_and_device_seconds(function)
    _, filler_seconds = _host_and_device_seconds(filler.zero_)
    fill_count = int(_HOST_LEAD * host_seconds / filler_seconds)
    hook = _BeforeCall(lambda: [filler.zero_() for _ in range(fill_count)])
    return Timing(*do_bench(function, quantiles=[0.5, _LOW, _HIGH], grad_to_none=[hook]))


def _host_and_device_seconds(function: Callable[[], Any]) -> tuple[float, float]:
    """Returns how long a few calls keep the host busy, and how long it takes until the device has finished them."""
    function()
    torch.accelerator.synchronize()
    start = time.perf_counter()
    for _ in range(_HOST_TIME_CALLS):
        function()
    enqueued = time.perf_counter()
    torch.accelerator.synchronize()
    return enqueued - start, time.perf_counter() - start


class _BeforeCall:
    """Passes for a tensor in do_bench's `grad_to_none`, and enqueues work whenever do_bench resets its gradient.

    do_bench does that before each call. Without the extra work, a fast device finishes the cache flush before the host
    has enqueued the call. The measured time then includes the device's wait for the host.
    """

    def __init__(self, enqueue: Callable[[], Any]) -> None:
        self._enqueue = enqueue

    grad = property(fset=lambda self, _: self._enqueue())


def _time_on_cpu(function: Callable[[], Any]) -> Timing:
    function()
    times: list[float] = []
    end = time.perf_counter() + _CPU_SECONDS
    while len(times) < _CPU_CALLS or time.perf_counter() < end:
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e3)
    return _quantiles(times)


def _quantiles(times: Sequence[float]) -> Timing:
    fifths = statistics.quantiles(times, n=5)
    return Timing(statistics.median(times), fifths[0], fifths[-1])


def current_device(device: torch.device) -> AbstractContextManager[Any]:
    """Returns a context in which an accelerator is the current device; a context without effect for other devices."""
    if device.index is None or not is_accelerator(device):
        return nullcontext()
    return torch.get_device_module(device.type).device(device.index)  # type: ignore[no-any-return]


def measure(workload: Workload, providers: Sequence[Provider], device: torch.device) -> Iterator[Measurement]:
    """Measures `copy_` and then every provider on one workload.

    An exception of a provider does not propagate. It becomes the reason why the provider was skipped.
    """
    time_call = timer(device)
    with current_device(device):
        x, grad = make_inputs(workload, device)
        copy = time_call(functools.partial(torch.empty_like(grad).copy_, grad))
        yield Measurement(workload, COPY, copy, copy)
        for provider in providers:
            try:
                timing = _measure(workload, provider, x, grad, time_call)
            except Exception as error:
                yield Measurement(workload, provider.name, None, copy, skipped=describe_error(error))
            else:
                yield Measurement(workload, provider.name, timing, copy)


def make_inputs(workload: Workload, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a random input and a contiguous random gradient of its shape."""
    dtype, shape = getattr(torch, workload.dtype), workload.shape
    allocated = (*shape[:-1], workload.cols + 4) if workload.is_slice else shape
    x = torch.randn(allocated, device=device, dtype=dtype)
    grad = torch.randn(shape, device=device, dtype=dtype)
    return (x[..., 1 : 1 + workload.cols] if workload.is_slice else x), grad


def _measure(workload: Workload, provider: Provider, x: torch.Tensor, grad: torch.Tensor, time_call: Timer) -> Timing:
    with (
        torch.set_grad_enabled(workload.direction == "backward"),
        # Run backward in this thread: waking torch's own thread can take longer than the cache flush.
        torch.autograd.set_multithreading_enabled(False),
        provider.using(workload.op, workload.dim) as function,
    ):
        call = _make_call(workload, function, x, grad)
        if error := _excessive_error(workload, call(), x, grad):
            raise ArithmeticError(f"wrong by {error:.2g} of the largest result")
        return time_call(call)


def _make_call(
    workload: Workload, function: Function, x: torch.Tensor, grad: torch.Tensor
) -> Callable[[], torch.Tensor]:
    if workload.direction == "forward":
        return lambda: function(x)
    leaf = x.detach().requires_grad_()
    y = function(leaf)
    return lambda: torch.autograd.grad(y, leaf, grad, retain_graph=True)[0]


def _excessive_error(workload: Workload, result: torch.Tensor, x: torch.Tensor, grad: torch.Tensor) -> float | None:
    """Returns the largest error relative to the largest value, or None if rounding explains it."""
    leaf = x.detach().requires_grad_(workload.direction == "backward")
    exact = reference(workload.op, leaf, workload.dim)
    if workload.direction == "backward":
        (exact,) = torch.autograd.grad(exact, leaf, grad.to(exact.dtype))
    largest = float(exact.detach().abs().max())
    error = float((result - exact).abs().max())
    limit = _MAX_ROUNDINGS * max(UNIT[workload.dtype], _MIN_UNIT) * largest
    return None if error <= limit else error / largest if largest else math.inf


def measure_host_time(provider: Provider, device: torch.device, op: str, grad: bool) -> Timing:
    """Measures how long a call on an 8 x 128 tensor keeps the host busy, in microseconds."""
    with current_device(device), provider.using(op, -1) as function:
        x = torch.randn(_HOST_SHAPE, device=device, requires_grad=grad)
        with torch.set_grad_enabled(grad):
            return _time_host(function, x, is_accelerator(device))


def _time_host(function: Function, x: torch.Tensor, on_accelerator: bool) -> Timing:
    rounds = []
    for _ in range(_HOST_ROUNDS + 1):
        if on_accelerator:
            torch.accelerator.synchronize()  # an empty queue: a full one would block the host
        start = time.perf_counter()
        for _ in range(_HOST_CALLS):
            function(x)
        rounds.append((time.perf_counter() - start) / _HOST_CALLS * 1e6)
    return _quantiles(rounds[1:])  # the first round compiles and warms up


def describe_error(error: Exception) -> str:
    """Returns an exception's type and the first line of its message, at most 200 characters of it."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else "no message"
    return f"{type(error).__name__}: {text[:200]}"
