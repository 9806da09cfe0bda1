"""Measures providers on workloads: checks each result against the op's reference, then compares the times of calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tridal.benchmarks import timing
from tridal.benchmarks.op_benchmark import Function, OpBenchmark, benchmark_of, random_tensor
from tridal.benchmarks.providers import COPY, Provider
from tridal.benchmarks.results import Row
from tridal.benchmarks.timing import Call, NoiseLimit, Sample, Timing, attempt
from tridal.benchmarks.workloads import Workload

MAX_SHARE = 1.5
"""A call that takes as long as `copy_` has this share if it passes over three tensors. A higher share is an error."""
HOST_SHAPE = (8, 128)
_HOST_CALLS, _HOST_ROUNDS = 200, 15
_RECORDED = "recorded forward"  # the direction of a call that autograd records
HOST_NOISE = NoiseLimit(0.25)
_MAX_ROUNDINGS = 16  # a result is wrong if it is off by more than this many roundings of the largest value
_MIN_UNIT = 2.0**-20  # lower bound of the unit roundoff, for float32 and float64 results


class Inputs(NamedTuple):
    """The tensors of a call, and a random contiguous gradient of each result, with the first tensor's shape."""

    tensors: tuple[Tensor, ...]
    differentiable: tuple[bool, ...]
    """Whether backward computes the gradient of each tensor."""
    grads: tuple[Tensor, ...]


def timer(device: torch.device) -> Callable[[Call], Timing]:
    """Makes a function that measures one call alone, see `timing.sampler`."""
    sample = timing.sampler(device)
    return lambda call: Timing.of([ms for _ in range(timing.ROUNDS) for ms in sample(call)])


def measure(workload: Workload, providers: Sequence[Provider], device: torch.device) -> list[Row]:
    """Measures `copy_` and every provider on one workload, in turn. Skips a provider that raises an exception.

    Skips all of them if the workload's tensors do not fit into memory.
    """
    entry, accelerated = benchmark_of(workload.op), timing.is_accelerator(device)
    names, limit = [COPY, *(provider.name for provider in providers)], timing.noise_limit(accelerated)
    directions = (workload.direction,)
    compare = partial(_compare, workload, directions, providers, entry, device, timing.sampler(device), limit)
    found, problem = attempt(compare, timing.ROUNDS, True)
    results: dict[str, Timing | str] = {name: problem or found[name, workload.direction] for name in names}
    copy, _ = _split(results[COPY])
    traffic = entry.traffic[workload.direction]
    return [make_row(workload, name, traffic, copy, results[name], accelerated) for name in names]


def measure_host_times(providers: Sequence[Provider], device: torch.device, op: str) -> list[Row]:
    """Measures how long a call keeps the host busy, without and with gradient, in microseconds."""
    entry, workload = benchmark_of(op), Workload("host", op, "forward", "float32", HOST_SHAPE)
    sample, rows = partial(timing.sample_host, device, calls=_HOST_CALLS), []
    found = _compare(workload, ("forward", _RECORDED), providers, entry, device, sample, HOST_NOISE, _HOST_ROUNDS)
    for (name, direction), result in found.items():
        times, skipped = _split(result)
        noisy = times is not None and HOST_NOISE.excess(times) > 1
        row = {"provider": name, "grad": direction == _RECORDED, **_columns("us", times)}
        rows.append({**row, "noisy": noisy, "skipped": skipped})
    return rows


def _compare(
    workload: Workload, directions: Sequence[str], providers: Sequence[Provider], entry: OpBenchmark,
    device: torch.device, sample: Callable[[Call], list[float]], limit: NoiseLimit, rounds: int, copies: bool = False,
) -> dict[tuple[str, str], Timing | str]:  # fmt: skip
    """Times each provider and direction. A provider that fails has the reason instead of a timing.

    First calls every function, which may compile it, and compares its results with those of the op's reference.
    """
    samples: dict[tuple[str, str], Sample] = {}
    found: dict[tuple[str, str], Timing | str] = {}
    with timing.current_device(device):
        inputs = make_inputs(workload, entry, device)
        exact = {direction: _exact_result(direction, workload.dim, entry, inputs) for direction in directions}
        if copies:
            source = inputs.grads[0] if inputs.grads else inputs.tensors[0].contiguous()
            samples[COPY, directions[0]] = partial(sample, partial(torch.empty_like(source).copy_, source))
        for provider in providers:
            function, missing = attempt(_function, provider, entry, workload)
            for direction in directions:
                run = partial(_run, entry.contexts.get(provider.name, nullcontext), direction, function, inputs)
                problem = missing or attempt(run, partial(_check, exact[direction], inputs.tensors[0].dtype))[1]
                if problem is None:
                    samples[provider.name, direction] = partial(run, sample)
                found[provider.name, direction] = problem or ""
        del exact
        return found | timing.compare(samples, limit, rounds)


def make_row(
    workload: Workload,
    provider: str,
    traffic: int,
    copy: Timing | None,
    result: Timing | str,
    accelerated: bool = True,
) -> Row:
    """Makes plain data of a measurement, with times in milliseconds and rates in GB/s of useful traffic.

    `traffic` is the number of tensors of the input's size that a call reads or writes. `copy` is the timing of
    `y.copy_(x)` on contiguous tensors of the same shape, in the same rounds; None if it was skipped. For a skipped
    provider, `result` is the reason. A CPU has no shares of copy, because its caches and Triton's interpreter make them
    meaningless.
    """
    times, skipped = _split(result)
    tensor_bytes, limit = workload.tensor_bytes, timing.noise_limit(accelerated)
    useful_bytes = (2 if provider == COPY else traffic) * tensor_bytes
    rate = useful_bytes / times.median * 1e-6 if times else None
    share = rate / (2 * tensor_bytes / copy.median * 1e-6) if rate and copy and accelerated else None
    noisy = times is not None and limit.excess(times) > 1
    return {
        "group": workload.group,
        "op": workload.op,
        "direction": workload.direction,
        "dtype": workload.dtype,
        "shape": workload.label,
        "rows": math.prod(workload.shape) // workload.cols,
        "cols": workload.cols,
        "provider": provider,
        **_columns("ms", times),
        "gbps": rate,
        "share_of_copy": share,
        "noisy": noisy,
        "share_noisy": bool(copy and share and (noisy or limit.excess(copy) > 1 or share > MAX_SHARE)),
        "skipped": skipped,
    }


def _split(result: Timing | str) -> tuple[Timing | None, str | None]:
    return (None, result) if isinstance(result, str) else (result, None)


def _columns(unit: str, times: Timing | None) -> Row:
    return dict(zip((unit, f"{unit}_20", f"{unit}_80"), times or (None, None, None), strict=True))


def make_inputs(workload: Workload, entry: OpBenchmark, device: torch.device) -> Inputs:
    """Draws the inputs of a workload at random."""
    dtype, shape = getattr(torch, workload.dtype), workload.shape
    allocated = (*shape[:-1], workload.cols + 4) if workload.is_slice else shape
    x = entry.first(torch.randn(allocated, device=device, dtype=dtype))
    x = x[..., 1 : 1 + workload.cols] if workload.is_slice else x
    others = (random_tensor(argument, x, workload.dim) for argument in entry.tensors[1:])
    grads = (torch.randn(shape, device=device, dtype=dtype) for _ in range(entry.gradients))
    return Inputs((x, *others), tuple(argument.differentiable for argument in entry.tensors), tuple(grads))


def _run(
    context: Callable[[], AbstractContextManager[Any]], direction: str, function: Function, inputs: Inputs,
    use: Callable[[Call], Any],
) -> Any:  # fmt: skip
    """Makes use(call), which calls the function or its gradient in the context of its provider."""
    with (
        torch.set_grad_enabled(direction != "forward"),
        # Run backward in this thread: waking torch's own thread can take longer than the cache flush.
        torch.autograd.set_multithreading_enabled(False),
        context(),
    ):
        return use(_make_call(direction, function, inputs))


def _make_call(direction: str, function: Function, inputs: Inputs) -> Call:
    """Makes a call without arguments. Backward gives the gradients of the tensors that are differentiable."""
    if direction == "forward":
        return partial(function, *inputs.tensors)
    leaves = [x.detach().requires_grad_(own) for x, own in zip(inputs.tensors, inputs.differentiable, strict=True)]
    if direction == _RECORDED:
        return partial(function, *leaves)
    outputs = _as_tuple(function(*leaves))[: len(inputs.grads)]
    # A result with a number per row is smaller than the gradient in `inputs`.
    grads = [g.view(-1)[: y.numel()].view(y.shape).to(y.dtype) for y, g in zip(outputs, inputs.grads, strict=True)]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    return partial(torch.autograd.grad, outputs, wanted, grads, retain_graph=True)


def _exact_result(direction: str, dim: int, entry: OpBenchmark, inputs: Inputs) -> tuple[Tensor, ...]:
    """Computes in at least float32, by torch's function or, if torch has none, by the op's reference."""
    wide = inputs._replace(tensors=tuple(map(_widened, inputs.tensors)), grads=tuple(map(_widened, inputs.grads)))
    function = entry.functions["torch" if "torch" in entry.functions else "reference"](dim)
    with torch.set_grad_enabled(direction == "backward"):
        return _as_tuple(_make_call(direction, function, wide)())


def _widened(x: Tensor) -> Tensor:
    return x.detach().to(torch.promote_types(x.dtype, torch.float32)) if x.is_floating_point() else x


def _as_tuple(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def _function(provider: Provider, entry: OpBenchmark, workload: Workload) -> Function:
    """Loads the provider's function for an op. A missing package or function is an error."""
    if provider.missing:
        raise ModuleNotFoundError(provider.missing)
    if provider.name not in entry.functions:
        raise NotImplementedError(f"{provider.name} has no function for {workload.op}")
    return entry.functions[provider.name](workload.dim)


def _check(exact: tuple[Tensor, ...], dtype: torch.dtype, call: Call) -> None:
    """Raises ArithmeticError if the call's results in this dtype are further from the exact ones than roundings are."""
    for result, expected in zip(_as_tuple(call()), exact, strict=True):
        largest, error = float(expected.abs().max()), float((result.detach() - expected).abs().max())
        limit = _MAX_ROUNDINGS * max(torch.finfo(dtype).eps / 2, _MIN_UNIT) * largest
        if not error <= limit:
            raise ArithmeticError(f"wrong by {error / largest if largest else math.inf:.2g} of the largest result")
