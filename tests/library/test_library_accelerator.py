"""Streams, graphs and offsets beyond 32 bits of all ops on an accelerator. Skipped without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import tridal
from op_samples import EACH_OP, Sample, gradients

SHAPES = [(64, 1000), (600, 781), (40, 70_001)]
"""Rows of one program, rows that are not aligned, and rows that several programs compute."""
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)
Tensors = dict[str, torch.Tensor]


def compare_with_torch(found: Tensors, sample: Sample, tensors: Tensors) -> None:
    """Compares gradients with those of torch in float64."""
    wide = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
    expected = gradients(sample.expected, {n: t.detach().requires_grad_(n in found) for n, t in wide.items()})
    # Sums have up to 600 terms. A logit of a linear layer has 70,001, and the largest logits decide.
    rounding = 5e-3 if "matrix" in sample.roles.values() else 256 * torch.finfo(torch.float32).eps
    for name, gradient in found.items():
        atol = 1e-6 + rounding * float(expected[name].abs().max())
        torch.testing.assert_close(gradient.double(), expected[name], rtol=1e-3, atol=atol)


@EACH_OP
@shapes
def test_results_on_several_streams(module: Any, device: torch.device, sample: Sample, shape: tuple[int, int]) -> None:
    tensors = sample.leaves(*shape, dtype=torch.float32, device=device)
    module.synchronize()
    results = []
    for stream in [module.Stream(device) for _ in range(3)] * 4:
        with module.stream(stream):
            results.append(gradients(sample.function, tensors))
    module.synchronize()
    compare_with_torch(results[0], sample, tensors)
    for result in results[1:]:
        assert all(map(torch.equal, result.values(), results[0].values()))


@EACH_OP
@shapes
def test_captured_graph_equals_eager(module: Any, device: torch.device, sample: Sample, shape: tuple[int, int]) -> None:
    if not hasattr(module, "CUDAGraph"):
        pytest.skip("this device has no graphs")
    tensors, side = sample.leaves(*shape, dtype=torch.float32, device=device), module.Stream(device)
    side.wait_stream(module.current_stream())
    with module.stream(side):
        for _ in range(3):
            gradients(sample.function, tensors)
    module.current_stream().wait_stream(side)
    graph = module.CUDAGraph()
    with module.graph(graph):
        results = gradients(sample.function, tensors)
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.copy_(tensor.roll(1, 0))
    graph.replay()
    module.synchronize()
    compare_with_torch(results, sample, tensors)
    assert all(map(torch.equal, results.values(), gradients(sample.function, tensors).values()))


@pytest.fixture
def large(module: Any, device: torch.device) -> None:
    if module.get_device_properties(device).total_memory < 70 * 10**9:
        pytest.skip("needs more memory")


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_norms_of_offsets_beyond_32_bits(device: torch.device, name: str) -> None:
    """Elements of the last two rows that are compared have offsets beyond 31 and 32 bits. Others have no gradient."""
    size, options, rows = 70_000, {"device": device, "dtype": torch.float16}, [0, 35_000, 69_999]
    x = torch.empty(size, size, **options).normal_()
    weight = torch.rand(size, **options) + 0.5
    upstream = torch.zeros(size, size, **options)
    upstream[rows] = torch.randn(len(rows), size, **options)
    results = []
    for place, given, dy in ((slice(None), (x, weight), upstream), (rows, (x[rows], weight), upstream[rows])):
        leaves = [tensor.detach().requires_grad_() for tensor in given]
        function = getattr(tridal if place != rows else functional, name)
        wide = leaves if place != rows else [leaf.double() for leaf in leaves]
        y = function(wide[0], (size,), wide[1], eps=1e-5)
        gradients = torch.autograd.grad(y, leaves, dy.to(y.dtype))
        results.append((y, *gradients) if place == rows else (y[rows], gradients[0][rows], gradients[1]))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), expected.double(), rtol=2e-3, atol=2e-3)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("shape", [(70_000, 70_000), (2, 50_000, 50_000), (3, 1_500_000_000)], ids=str)
def test_cross_entropy_of_offsets_beyond_32_bits(device: torch.device, shape: tuple[int, ...]) -> None:
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
