"""Programs that compute rows together give the results of torch, whatever their order: the exchange and its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tridal
from checked_memory import checked_memory
from cooperative_interpreter import cooperative
from op_samples import OPS, Sample, as_tuple, gradients
from tridal.devices.types import KernelConfig

pytestmark = pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")
CONFIGS = {
    "one row": KernelConfig("cooperative", 1, 16),
    "many programs": KernelConfig("cooperative", 1, 8),
    "rows of a tile": KernelConfig("cooperative", 2, 16),
    "one tile for each group": KernelConfig("cooperative", 1, 16, persistent=False),
    "reload": KernelConfig("cooperative", 1, 16, reload=True),
    "peel": KernelConfig("cooperative", 1, 16, peel=True),
    "peel and one tile": KernelConfig("cooperative", 1, 16, peel=True, persistent=False),
    "loop": KernelConfig("column_loop", 1, 8, programs_per_row=2),
    "loop over rows of a tile": KernelConfig("column_loop", 2, 8, programs_per_row=4, reload=True),
    "loop with peel": KernelConfig("column_loop", 1, 8, programs_per_row=2, peel=True),
    "loop with peel and lanes": KernelConfig("column_loop", 1, 16, programs_per_row=2, peel=True, lanes=2),
    "loop with lanes": KernelConfig("column_loop", 1, 16, programs_per_row=2, lanes=2, persistent=False),
}
EACH_CONFIG = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@pytest.fixture(autouse=True, scope="module")
def interpreted() -> None:
    if reason := tridal.registry.get("interpreter").unavailable():
        pytest.skip(reason)


def pairs() -> Iterator[Any]:
    """All configurations for layer_norm, which has two statistics and numbers per column, and one for each other op."""
    for number, (name, sample) in enumerate(OPS.items()):
        own = [*CONFIGS] if name == "layer_norm" else [[*CONFIGS][number % len(CONFIGS)]]
        yield from (pytest.param(sample, CONFIGS[config], id=f"{name}, {config}") for config in own)


@pytest.mark.parametrize(("sample", "config"), [*pairs()])
def test_results_and_gradients_are_those_of_torch(sample: Sample, config: KernelConfig) -> None:
    torch.manual_seed(0)  # with some other inputs, gradients are small differences of large numbers
    tensors = sample.leaves(3, 41, dtype=torch.float32)
    exact = {
        n: (t.double() if t.is_floating_point() else t).detach().requires_grad_(t.requires_grad)
        for n, t in tensors.items()
    }
    expected = [*as_tuple(sample.expected(**exact)), *gradients(sample.expected, exact).values()]
    with cooperative(config), checked_memory():
        found = [*as_tuple(sample.function(**tensors)), *gradients(sample.function, tensors).values()]
    for actual, wanted in zip(found, expected, strict=True):
        # The loss is the sine of the results, so the rounding of a large log-probability changes its gradients.
        atol = 2e-5 * max(1.0, float(wanted.detach().abs().max()))
        torch.testing.assert_close(actual.double(), wanted.double(), rtol=1e-5, atol=atol)


@EACH_CONFIG
def test_parts_of_infinities_and_nans_do_not_reach_other_rows(config: KernelConfig) -> None:
    x = torch.randn(6, 41)
    x[0, :16] = x[1, 16:] = x[2] = -torch.inf
    x[3, 20] = x[4, 40] = torch.nan
    expected = torch.softmax(x.double(), -1)
    with cooperative(config), tridal.record_calls() as records:
        y = tridal.softmax(x)
    assert {record.schedule for record in records} == {config.schedule}
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("config", [CONFIGS["one row"], CONFIGS["rows of a tile"]])
def test_nans_whose_bits_are_all_ones_are_published(config: KernelConfig) -> None:
    """Two of them would be the word that says "not published", for which programs wait."""
    x = torch.randn(4, 41)
    x[1] = torch.tensor(-1, dtype=torch.int32).view(torch.float32)
    with cooperative(config):
        y = tridal.layer_norm(x, (41,))
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (41,)), equal_nan=True)


@EACH_CONFIG
def test_groups_of_programs_compute_each_row_once_in_any_order(config: KernelConfig) -> None:
    for seed, (rows, groups, offset) in enumerate(((1, 1, 0), (5, 3, 1))):
        x = torch.randn(rows * 41 + offset)[offset:].view(rows, 41)
        with cooperative(config, groups, seed):
            y = tridal.softmax(x)
        torch.testing.assert_close(y, torch.softmax(x, -1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "dim"), [((70, 20), 0), ((2, 61, 13), 1)])
@pytest.mark.parametrize(
    "config",
    [
        KernelConfig("column_loop", 8, 8, programs_per_row=3),
        KernelConfig("column_loop", 4, 4, programs_per_row=5, reload=True, num_stages=2),
        KernelConfig("column_loop", 8, 8, programs_per_row=2, lanes=4),
        KernelConfig("column_loop", 8, 8, programs_per_row=3, reload=True, lanes=4),
        KernelConfig("column_loop", 8, 16, lanes=4),
    ],
    ids=str,
)
def test_loops_over_parts_of_inner_rows(
    config: KernelConfig, shape: tuple[int, ...], dim: int, dtype: torch.dtype
) -> None:
    x = torch.randn(shape).to(dtype)
    x.view(-1)[:5] = -torch.inf
    dy = torch.randn(shape).to(dtype)
    for function, reference in ((tridal.softmax, torch.softmax), (tridal.log_softmax, torch.log_softmax)):
        with cooperative(config), checked_memory(), tridal.record_calls() as records:
            y = function(x.requires_grad_(), dim)
            (found,) = torch.autograd.grad(y, x, dy)
        assert {record.schedule for record in records} == {"column_loop"}
        exact = x.detach().double().requires_grad_()
        expected = reference(exact, dim)
        (gradient,) = torch.autograd.grad(expected, exact, dy.double())
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(y.double(), expected, rtol=8 * eps, atol=8 * eps)
        # The gradient reads y, whose rounding error is multiplied by the sum of a row of dy.
        torch.testing.assert_close(found.double(), gradient, rtol=8 * eps, atol=8 * eps * shape[dim] ** 0.5)
        x = x.detach()
