"""Timing of providers: checks each result against the op's reference, then reports a call's median and quantiles."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from tridal.benchmarks.providers import COPY, Function, Provider
from tridal.benchmarks.results import Row
from tridal.benchmarks.workloads import Workload
from tridal.ops import table
from tridal.testing import checking

_FILLER_BYTES, _HOST_TIME_CALLS = 256 << 20, 5
_HOST_LEAD = 2  # ratio of the accelerator's work before a call to the host time of the call
_CPU_SECONDS, _CPU_CALLS = 0.05, 7  # minimum duration and number of calls of a measurement on a CPU
_HOST_SHAPE, _HOST_CALLS, _HOST_ROUNDS = (8, 128), 200, 15
_MAX_ROUNDINGS = 16  # a result is wrong if it is off by more than this many roundings of the largest value
_MIN_UNIT = 2.0**-20  # lower bound of the unit roundoff, for float32 and float64 results

Timer: TypeAlias = Callable[[Callable[[], Any]], "Timing"]


class Timing(NamedTuple):
    """Median, 20% and 80% quantile of the time per call, in milliseconds. Host times are in microseconds."""

    median: float
    low: float
    high: float


def is_accelerator(device: torch.device) -> bool:
    """Returns whether the device has the type of torch's current accelerator."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found is not None and found.type == device.type


def timer(device: torch.device) -> Timer:
    """Returns a function that measures the time of calls on the device. The called function takes no arguments.

    On an accelerator, the function flushes the L2 cache before each call. The time excludes waiting for the host.
    """
    return partial(_time_on_accelerator, device) if is_accelerator(device) else _time_on_cpu


def _time_on_accelerator(device: torch.device, function: Callable[[], Any]) -> Timing:
    from triton.testing import do_bench

    filler = torch.empty(_FILLER_BYTES, dtype=torch.int8, device=device)
    host_seconds, _ = _host_and_device_seconds(function)
    _, filler_seconds = _host_and_device_seconds(filler.zero_)
    fill_count = int(_HOST_LEAD * host_seconds / filler_seconds)
    hook = _BeforeCall(lambda: [filler.zero_() for _ in range(fill_count)])
    return Timing(*do_bench(function, quantiles=[0.5, 0.2, 0.8], grad_to_none=[hook]))


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
    """Replaces a tensor in do_bench's `grad_to_none`. Enqueues work when do_bench resets the gradient.

    do_bench resets the gradient before each call. Without this work, a fast device finishes the cache flush before the
    host has enqueued the call. The measured time would then include waiting for the host.
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
    """Returns a context in which an accelerator is the current device. For other devices, the context does nothing."""
    if device.index is None or not is_accelerator(device):
        return nullcontext()
    return torch.get_device_module(device.type).device(device.index)  # type: ignore[no-any-return]


def measure(workload: Workload, providers: Sequence[Provider], device: torch.device) -> Iterator[Row]:
    """Measures `copy_` and then every provider on one workload. A provider that raises an exception is skipped."""
    time_call = timer(device)
    with current_device(device):
        x, grad = make_inputs(workload, device)
        copy = time_call(partial(torch.empty_like(grad).copy_, grad))
        yield make_row(workload, COPY, copy, copy)
        for provider in providers:
            timing, skipped = _attempt(_measure, workload, provider, x, grad, time_call)
            yield make_row(workload, provider.name, copy, timing, skipped)


def make_row(workload: Workload, provider: str, copy: Timing, timing: Timing | None, skipped: str | None = None) -> Row:
    """Returns a measurement as plain data, with times in milliseconds and rates in GB/s of useful traffic.

    `copy` is the timing of `y.copy_(x)` on contiguous tensors of the same shape, in the same run. For a provider that
    was skipped, `timing` is None and `skipped` is the reason.
    """
    traffic = workload.copy_bytes if provider == COPY else workload.useful_bytes
    rate = traffic / timing.median * 1e-6 if timing else None
    copy_rate = workload.copy_bytes / copy.median * 1e-6
    return {
        "group": workload.group,
        "op": workload.op,
        "direction": workload.direction,
        "dtype": workload.dtype,
        "shape": workload.label,
        "rows": math.prod(workload.shape) // workload.cols,
        "cols": workload.cols,
        "provider": provider,
        **_columns("ms", timing),
        "gbps": rate,
        "share_of_copy": None if rate is None else rate / copy_rate,
        "skipped": skipped,
    }


def _columns(unit: str, timing: Timing | None) -> Row:
    return dict(zip((unit, f"{unit}_20", f"{unit}_80"), timing or (None, None, None), strict=True))


def _attempt(measure: Callable[..., Timing], *arguments: Any) -> tuple[Timing | None, str | None]:
    """Returns (timing, None), or (None, message) if measure(*arguments) raises an exception."""
    try:
        return measure(*arguments), None
    except Exception as error:
        first_line, *_ = str(error).strip().splitlines() or ["no message"]
        return None, f"{type(error).__name__}: {first_line[:200]}"


def make_inputs(workload: Workload, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns a random input, and a random contiguous gradient with the input's shape."""
    dtype, shape = getattr(torch, workload.dtype), workload.shape
    allocated = (*shape[:-1], workload.cols + 4) if workload.is_slice else shape
    x = torch.randn(allocated, device=device, dtype=dtype)
    grad = torch.randn(shape, device=device, dtype=dtype)
    return (x[..., 1 : 1 + workload.cols] if workload.is_slice else x), grad


def _measure(workload: Workload, provider: Provider, x: Tensor, grad: Tensor, time_call: Timer) -> Timing:
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


def _make_call(workload: Workload, function: Function, x: Tensor, grad: Tensor) -> Callable[[], Tensor]:
    if workload.direction == "forward":
        return lambda: function(x)
    leaf = x.detach().requires_grad_()
    y = function(leaf)
    return lambda: torch.autograd.grad(y, leaf, grad, retain_graph=True)[0]


def _excessive_error(workload: Workload, result: Tensor, x: Tensor, grad: Tensor) -> float | None:
    """Returns the largest error relative to the largest value, or None if the error is within rounding errors.

    The exact result is computed in at least float32, by torch's function or, if torch has none, by the op's reference.
    """
    wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    reference = partial(checking.reference, table.op_named(workload.op), dim=workload.dim)
    exact = _make_call(workload, reference, wide, grad.to(wide.dtype))()
    largest = float(exact.abs().max())
    error = float((result - exact).abs().max())
    limit = _MAX_ROUNDINGS * max(torch.finfo(x.dtype).eps / 2, _MIN_UNIT) * largest
    return None if error <= limit else error / largest if largest else math.inf


def measure_host_times(providers: Sequence[Provider], device: torch.device, op: str) -> Iterator[Row]:
    """Measures how long a call keeps the host busy, without and with gradient, in microseconds."""
    for provider in providers:
        for grad in (False, True):
            timing, skipped = _attempt(_measure_host_time, provider, device, op, grad)
            yield {"provider": provider.name, "grad": grad, **_columns("us", timing), "skipped": skipped}


def _measure_host_time(provider: Provider, device: torch.device, op: str, grad: bool) -> Timing:
    rounds = []
    with current_device(device), provider.using(op, -1) as function, torch.set_grad_enabled(grad):
        x = torch.randn(_HOST_SHAPE, device=device, requires_grad=grad)
        for _ in range(_HOST_ROUNDS + 1):
            if is_accelerator(device):
                torch.accelerator.synchronize()  # empties the queue, because a full queue blocks the host
            start = time.perf_counter()
            for _ in range(_HOST_CALLS):
                function(x)
            rounds.append((time.perf_counter() - start) / _HOST_CALLS * 1e6)
    return _quantiles(rounds[1:])  # the first round compiles and warms up
