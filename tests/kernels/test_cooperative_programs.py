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
}
EACH_CONFIG = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@pytest.fixture(autouse=True, scope="module")
def interpreted() -> None:
    if reason := tridal.registry.get("interpreter").unavailable():
        pytest.skip(reason)


def pairs() -> Iterator[Any]:
    """All configurations for layer_norm, which has two statistics and numbers per column, and one for each other op."""
    for number, (name, sample) in enumerate(OPS.items()):
        own = [*CONFIGS] if name == "layer_norm" else [[*CONFIGS][number % 7]]
        yield from (pytest.param(sample, CONFIGS[config], id=f"{name}, {config}") for config in own)


@pytest.mark.parametrize(("sample", "config"), [*pairs()])
def test_results_and_gradients_are_those_of_torch(sample: Sample, config: KernelConfig) -> None:
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
    assert {record.schedule for record in records} == {"cooperative"}
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
