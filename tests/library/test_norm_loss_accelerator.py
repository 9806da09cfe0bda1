"""Streams, graphs, threads and offsets beyond 32 bits of norms and losses on an accelerator. Skipped without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import tridal
from feature_axes import in_threads

Step = Callable[..., tuple[torch.Tensor, ...]]
"""Returns the results and the gradients of its tensors."""


def _with_gradients(results: tuple[torch.Tensor, ...], inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    upstream = [torch.linspace(0.5, 1.5, y.numel(), device=y.device, dtype=y.dtype).view(y.shape) for y in results]
    return (*(y.detach() for y in results), *torch.autograd.grad(results, inputs, upstream))


def _norm(name: str) -> Step:
    def step(library: Any, x: torch.Tensor, residual: torch.Tensor, *parameters: torch.Tensor) -> Any:
        if library is tridal:
            results = getattr(tridal, name)(x, parameters[0].shape, *parameters, eps=1e-5, residual=residual)
        else:
            results = getattr(functional, name)(x + residual, parameters[0].shape, *parameters, eps=1e-5), x + residual
        return _with_gradients(results, (x, residual, *parameters))

    return step


def _cross_entropy(library: Any, x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> Any:
    loss = library.cross_entropy(x, target, weight, ignore_index=3, label_smoothing=0.1)
    return _with_gradients((loss,), (x,))


def _linear(library: Any, x: torch.Tensor, matrix: torch.Tensor, target: torch.Tensor) -> Any:
    if library is tridal:
        loss = tridal.linear_cross_entropy(x, matrix, target, chunk_size=50)
    else:
        loss = functional.cross_entropy(functional.linear(x, matrix), target)
    return _with_gradients((loss,), (x, matrix))


def _norm_tensors(number: int) -> Callable[..., list[torch.Tensor]]:
    def make(rows: int, cols: int, **options: Any) -> list[torch.Tensor]:
        parameters = [torch.rand(cols, **options) + 0.5, torch.randn(cols, **options)]
        return [torch.randn(rows, cols, **options), torch.randn(rows, cols, **options), *parameters[:number]]

    return make


def _logits(rows: int, cols: int, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
    weight = torch.rand(cols, device=device, dtype=dtype) + 0.5
    return [torch.randn(rows, cols, device=device, dtype=dtype), torch.randint(cols, (rows,), device=device), weight]


def _hidden(rows: int, cols: int, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
    x, matrix = (torch.randn(n, 64, device=device, dtype=dtype) / 8 for n in (rows, cols))
    return [x, matrix, torch.randint(cols, (rows,), device=device)]


STEPS: dict[str, tuple[Step, Callable[..., list[torch.Tensor]]]] = {
    "rms_norm": (_norm("rms_norm"), _norm_tensors(1)),
    "layer_norm": (_norm("layer_norm"), _norm_tensors(2)),
    "cross_entropy": (_cross_entropy, _logits),
    "linear_cross_entropy": (_linear, _hidden),
}
SHAPES = [(64, 1000), (600, 781), (40, 70_001)]
"""Rows of one program, rows that are not aligned, and rows that several programs compute."""
cases = pytest.mark.parametrize("name", STEPS)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def tensors_of(name: str, shape: tuple[int, int], device: torch.device) -> list[torch.Tensor]:
    """Returns random float32 tensors. Those of the first and second place need gradients, and parameters of norms."""
    tensors = STEPS[name][1](*shape, device=device, dtype=torch.float32)
    frozen = {2} if name.startswith("cross") else set()
    return [t.requires_grad_(t.is_floating_point() and i not in frozen) for i, t in enumerate(tensors)]


def assert_same_as_torch(found: tuple[torch.Tensor, ...], name: str, tensors: list[torch.Tensor]) -> None:
    """Compares with torch in float64."""
    wide = [t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t for t in tensors]
    for result, expected in zip(found, STEPS[name][0](functional, *wide), strict=True):
        largest = float(expected.abs().max())
        rounding = 64 * torch.finfo(torch.float32).eps  # sums have up to 600 terms
        torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=rounding * largest)


@cases
@shapes
def test_results_on_several_streams(module: Any, device: torch.device, name: str, shape: tuple[int, int]) -> None:
    tensors, streams = tensors_of(name, shape, device), [module.Stream(device) for _ in range(3)]
    module.synchronize()
    results = []
    for stream in streams * 4:
        with module.stream(stream):
            results.append(STEPS[name][0](tridal, *tensors))
    module.synchronize()
    assert_same_as_torch(results[0], name, tensors)
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


@cases
@shapes
def test_captured_graph_equals_eager(module: Any, device: torch.device, name: str, shape: tuple[int, int]) -> None:
    if not hasattr(module, "CUDAGraph"):
        pytest.skip("this device has no graphs")
    tensors, step = tensors_of(name, shape, device), STEPS[name][0]
    side = module.Stream(device)
    side.wait_stream(module.current_stream())
    with module.stream(side):
        for _ in range(3):
            step(tridal, *tensors)
    module.current_stream().wait_stream(side)
    graph = module.CUDAGraph()
    with module.graph(graph):
        results = step(tridal, *tensors)
    for _ in range(2):
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(tensor.roll(1, 0))
        graph.replay()
        module.synchronize()
        assert_same_as_torch(results, name, tensors)
        assert all(map(torch.equal, results, step(tridal, *tensors)))


@cases
def test_calls_from_several_threads(module: Any, device: torch.device, name: str) -> None:
    cases = [tensors_of(name, shape, device) for shape in SHAPES]

    def compute() -> torch.Tensor:
        for tensors in cases * 2:
            results = STEPS[name][0](tridal, *tensors)
            assert_same_as_torch(results, name, tensors)
        return results[0]

    in_threads(6)(compute, device)


@cases
def test_tensors_on_the_last_device_while_the_first_is_current(module: Any, device: torch.device, name: str) -> None:
    if module.device_count() < 2:
        pytest.skip("needs two devices")
    tensors = tensors_of(name, SHAPES[1], torch.device(device.type, module.device_count() - 1))
    results = STEPS[name][0](tridal, *tensors)
    assert {result.device for result in results} == {tensors[0].device}
    assert module.current_device() == 0
    assert_same_as_torch(results, name, tensors)


def needs_memory(module: Any, device: torch.device, gigabytes: int) -> None:
    if module.get_device_properties(device).total_memory < gigabytes * 10**9:
        pytest.skip("needs more memory")


ROWS = (0, 35_000, 69_999)
"""Rows of 70,000 that are compared: elements of the last two have offsets beyond 31 and 32 bits."""


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_norms_of_offsets_beyond_32_bits(module: Any, device: torch.device, name: str) -> None:
    needs_memory(module, device, 70)
    size, options = 70_000, {"device": device, "dtype": torch.float16}
    x, upstream = (torch.empty(size, size, **options).normal_() for _ in range(2))
    parameters = [torch.rand(size, **options) + 0.5, torch.randn(size, **options)][: 1 + (name == "layer_norm")]
    for tensor in (x, *parameters):
        tensor.requires_grad_()
    y = getattr(tridal, name)(x, (size,), *parameters, eps=1e-5)
    gradients = torch.autograd.grad(y, (x, *parameters), upstream)

    def expected(rows: slice) -> tuple[torch.Tensor, ...]:
        wide = [t.detach().double().requires_grad_() for t in (x[rows], *parameters)]
        result = getattr(functional, name)(wide[0], (size,), *wide[1:], eps=1e-5)
        return (result.detach(), *torch.autograd.grad(result, wide, upstream[rows].double()))

    sums = [torch.zeros(size, device=device, dtype=torch.float64) for _ in parameters]
    for start in range(0, size, 1000):
        for total, part in zip(sums, expected(slice(start, start + 1000))[2:], strict=True):
            total += part
    for found, total in zip(gradients[1:], sums, strict=True):
        torch.testing.assert_close(found.double(), total, rtol=2e-3, atol=0.5)  # float16 sums have a size of 260
    for row in ROWS:
        result, gradient = expected(slice(row, row + 1))[:2]
        torch.testing.assert_close(y[row].double(), result[0], rtol=2e-3, atol=2e-3)
        torch.testing.assert_close(gradients[0][row].double(), gradient[0], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_a_norm_of_rows_beyond_31_bits(module: Any, device: torch.device, name: str) -> None:
    needs_memory(module, device, 70)
    size = 2**31 + 5
    x = torch.empty(2, size, dtype=torch.float16, device=device).normal_()
    y = getattr(tridal, name)(x, (size,), eps=1e-5)
    for row in range(2):
        ends = torch.cat([x[row, :1000], x[row, -1000:]]).double()  # of 2**31 normal numbers, mean is 0 and deviation 1
        found = torch.cat([y[row, :1000], y[row, -1000:]]).double()
        torch.testing.assert_close(found, ends, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(70_000, 70_000), (2, 50_000, 50_000), (3, 1_500_000_000)], ids=str)
def test_cross_entropy_of_offsets_beyond_32_bits(module: Any, device: torch.device, shape: tuple[int, ...]) -> None:
    needs_memory(module, device, 70)
    x = torch.empty(shape, dtype=torch.float16, device=device).normal_().requires_grad_()
    target = torch.randint(shape[1], (shape[0], *shape[2:]), device=device)
    loss = tridal.cross_entropy(x, target, reduction="none")
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    targets, losses = target.flatten(), loss.detach().flatten()
    logits, gradients = (t.detach().movedim(1, -1) for t in (x, gradient))
    for row in (0, targets.numel() // 2, targets.numel() - 1):
        place = (row // shape[2], row % shape[2]) if len(shape) == 3 else row
        wide = logits[place].double().requires_grad_()
        expected = functional.cross_entropy(wide[None], targets[row : row + 1])
        torch.testing.assert_close(losses[row].double(), expected, rtol=2e-3, atol=2e-3)
        wanted = torch.autograd.grad(expected, wide)[0]
        torch.testing.assert_close(gradients[place].double(), wanted, rtol=2e-3, atol=1e-7)
