"""Streams, memory, large plans and offsets beyond 32 bits of softmax on an accelerator. Skipped without one.

`tests/library/test_library_accelerator.py` has graphs, threads and several devices, with all ops.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tridal
from tridal import testing
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


@pytest.mark.parametrize("op", [op.name for op in table.ops().values() if op.one_tensor])
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
