"""Streams, graphs, threads, memory and offsets beyond 32 bits on an accelerator. Skipped without one."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import tridal
from tridal import testing
from tridal.devices import registry
from tridal.devices.types import Backend
from tridal.ops import table
from tridal.runtime import workspace
from tridal.testing.cases import DIRECTIONS, Case, Direction

SHAPES = [
    ((64, 1000), 1),
    ((4096, 781), 1),
    ((3, 200_000), 1),
    ((64, 70_001), 1),
    ((30_000, 100), 0),
    ((8, 9000, 64), 1),
]
"""Shapes and dims that give whole-row plans, plans that peel, and cooperative plans with one and several rows."""


def assert_is_softmax(y: torch.Tensor, x: torch.Tensor, dim: int = -1) -> None:
    torch.testing.assert_close(y, torch.softmax(x.double(), dim).to(y.dtype), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_results_on_several_streams(module: Any, device: torch.device, shape: tuple[int, ...], dim: int) -> None:
    x, streams = torch.randn(shape, device=device), [module.Stream(device) for _ in range(4)]
    module.synchronize()
    results = []
    for _ in range(8):
        for stream in streams:
            results.append(tridal.softmax(x, dim, stream=stream))
    with module.stream(streams[0]):
        results.append(tridal.softmax(x, dim))
    module.synchronize()
    for y in results:
        assert_is_softmax(y, x, dim)
    assert all(not tensor.any() for tensor in workspace._by_stream.values()), "a launch leaves its workspace zero"


def test_raw_stream_handle(module: Any, device: torch.device) -> None:
    if not hasattr(module, "ExternalStream"):
        pytest.skip("this torch cannot wrap raw handles")
    x, stream = torch.randn(33, 257, device=device), module.Stream(device)
    module.synchronize()
    handle = next(getattr(stream, name) for name in dir(stream) if name == f"{device.type}_stream")
    y = tridal.softmax(x, stream=handle)
    stream.synchronize()
    assert_is_softmax(y, x)


def test_gradient_on_a_stream(module: Any, device: torch.device) -> None:
    x, stream = torch.randn(64, 1000, device=device, requires_grad=True), module.Stream(device)
    g = torch.randn(64, 1000, device=device)
    module.synchronize()
    tridal.softmax(x, stream=stream).backward(g)
    module.synchronize()
    expected = torch._softmax_backward_data(g.double(), torch.softmax(x.double(), -1), -1, torch.float64)
    assert x.grad is not None
    torch.testing.assert_close(x.grad.double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_captured_graph_equals_eager(module: Any, device: torch.device, shape: tuple[int, ...], dim: int) -> None:
    if not hasattr(module, "CUDAGraph"):
        pytest.skip("this device has no graphs")
    x, g = torch.randn(shape, device=device, requires_grad=True), torch.randn(shape, device=device)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        y = tridal.softmax(x, dim)
        return y, torch.autograd.grad(y, x, g)[0]

    side = module.Stream(device)
    side.wait_stream(module.current_stream())
    with module.stream(side):
        for _ in range(3):
            step()
    module.current_stream().wait_stream(side)
    graph = module.CUDAGraph()
    with module.graph(graph):
        y, dx = step()
    for _ in range(3):
        with torch.no_grad():
            x.copy_(torch.randn_like(x))
        graph.replay()
        expected_y, expected_dx = step()
        assert torch.equal(y, expected_y)
        assert torch.equal(dx, expected_dx)


def test_calls_from_several_threads(module: Any, device: torch.device) -> None:
    xs = [torch.randn(17 + i, 300 + 7 * i, device=device) for i in range(8)] + [torch.randn(5, 90_000, device=device)]
    module.synchronize()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for x in xs:
                assert_is_softmax(tridal.softmax(x), x)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("shape", [(4096, 4096), (64, 1 << 20), (64, 4096, 256)])
def test_only_the_output_is_allocated(module: Any, device: torch.device, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, device=device)
    tridal.softmax(x, 1)
    module.synchronize()
    module.reset_peak_memory_stats()
    before = module.memory_allocated()
    y = tridal.softmax(x, 1)
    size = y.numel() * y.element_size()
    assert module.max_memory_allocated() - before <= size + 512


@pytest.mark.parametrize("op", table.one_tensor_ops())
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("shape", "dim"), [((33, 500, 528), 1), ((3, 5000, 528), 1), ((50_257, 160), 0), ((1100, 30_000), 1)]
)
def test_planned_large_cases_pass(
    module: Any, backend: Backend, op: str, direction: Direction, shape: tuple[int, ...], dim: int
) -> None:
    """Plans for many rows differ from those of the suite's small cases, in particular for 16-bit dtypes."""
    result = testing.run_case(Case(op, direction, shape, dim, dtype="bfloat16"), backend)
    assert result.passed, result.message


@pytest.mark.parametrize(
    ("shape", "dim"), [((70_000, 70_000), 0), ((70_000, 70_000), 1), ((2**31 + 5, 1), 1), ((3, 1_500_000_000), 1)]
)
def test_offsets_beyond_32_bits(module: Any, device: torch.device, shape: tuple[int, ...], dim: int) -> None:
    size = shape[0] * shape[1]
    if module.get_device_properties(device).total_memory < 12 * size:
        pytest.skip("needs more memory")
    x = torch.empty(shape, dtype=torch.float16, device=device).normal_()
    y = tridal.softmax(x, dim)
    for index in (0, shape[1 - dim] // 2, shape[1 - dim] - 1):
        result, row = y.select(1 - dim, index).float(), x.select(1 - dim, index).double()
        torch.testing.assert_close(result.double(), torch.softmax(row, 0), rtol=2e-3, atol=1e-7)


def test_tensor_on_the_last_device_while_the_first_is_current(
    module: Any, device: torch.device, backend: Backend
) -> None:
    if backend.device_count() < 2:
        pytest.skip("needs two devices")
    last = torch.device(device.type, backend.device_count() - 1)
    x = torch.randn(100, 781, device=last, requires_grad=True)
    y = tridal.softmax(x)
    y.backward(torch.ones_like(y))
    assert y.device == last
    assert_is_softmax(y.detach(), x.detach())
    assert module.current_device() == 0
    assert registry.serving(device.type) is backend
