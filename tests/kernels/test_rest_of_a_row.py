"""Rows with two tiles: `rest_cols` gives the results of one tile, for every width that both tiles hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import tridal
from call_helpers import kernel_call, written
from tridal.devices.types import KernelConfig

TILES = [(1152, 1024, 128), (1536, 1024, 512), (4097, 4096, 1), (640, 512, 512)]


@contextlib.contextmanager
def two_tiles(*kernels: str, cols: Any, tile: int, rest: int, dtype: str = "float32", **fields: Any) -> Iterator[None]:
    config = {"schedule": "whole_row", "rows": 1, "cols": tile, "rest_cols": rest, **fields}
    overrides = [{"kernel": kernel, "dtype": dtype, "cols": cols, "config": config} for kernel in kernels]
    with tridal.use(kernel_configs=overrides):
        yield


@pytest.mark.parametrize(("cols", "tile", "rest"), TILES)
@pytest.mark.parametrize("reload", [False, True])
def test_gradients_and_sums_over_rows(cols: int, tile: int, rest: int, reload: bool, device: torch.device) -> None:
    x, dy = torch.randn(2, 5, cols, device=device).unbind()
    tensors = [x, *(torch.rand(2, cols, device=device) + 0.5)]
    sizes: dict[str, Any] = {"cols": cols, "tile": tile, "rest": rest, "reload": reload}

    def computed(function: Any, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        leaves = [tensor.to(dtype).requires_grad_() for tensor in tensors]
        y = function(leaves[0], (cols,), *leaves[1:])
        return y.detach(), *torch.autograd.grad(y, leaves, dy.to(dtype))

    with two_tiles("layer_norm", "layer_norm_backward", **sizes):
        found = computed(tridal.layer_norm, torch.float32)
    for result, expected in zip(found, computed(functional.layer_norm, torch.float64), strict=True):
        assert_close(result.double(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("persistent", [False, True])
def test_numbers_per_column_and_block(persistent: bool, device: torch.device) -> None:
    x, scale, shift = torch.randn(2, 3, 1152, device=device), *torch.randn(2, 2, 1, 1152, device=device)
    tensors, dy = (x, scale, shift), torch.randn_like(x)

    def computed(dtype: torch.dtype, function: Any) -> tuple[torch.Tensor, ...]:
        leaves = [tensor.to(dtype).requires_grad_() for tensor in tensors]
        y = function(*leaves)
        return y.detach(), *torch.autograd.grad(y, leaves, dy.to(dtype))

    def ours(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        kernels = "modulated_layer_norm", "modulated_layer_norm_backward"
        with two_tiles(*kernels, cols=1152, tile=1024, rest=128, persistent=persistent):
            return tridal.modulated_layer_norm(x, scale, (1152,), shift=shift)

    found = computed(torch.float32, ours)
    exact = computed(torch.float64, lambda x, scale, shift: functional.layer_norm(x, (1152,)) * (1 + scale) + shift)
    for result, expected in zip(found, exact, strict=True):
        assert_close(result.double(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("cols", [65, 96, 128])
def test_masked_softmax_of_each_width_that_the_tiles_hold(cols: int, device: torch.device) -> None:
    scores, mask = torch.randn(2, 9, cols, device=device), torch.rand(9, cols, device=device) > 0.2
    masked = scores.double().masked_fill(~(mask & torch.ones_like(mask).tril()), -torch.inf)
    expected = masked.softmax(-1)
    with two_tiles("softmax", cols=[65, 128], tile=64, rest=64):
        found = tridal.softmax(scores, -1, mask=mask, causal=True)
    assert_close(found.double(), expected, rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(("cols", "served"), [(101, (65, 128)), (112, (80, 128)), (65, (65, 128))])
def test_a_call_of_one_row_serves_widths_that_fill_the_first_tile(cols: int, served: tuple[int, int]) -> None:
    assert kernel_call((1, cols)).column_range(KernelConfig("whole_row", 1, 64, rest_cols=64)) == served


def test_the_first_tile_has_no_mask() -> None:
    text = written(kernel_call((64, 1152)), KernelConfig("whole_row", 1, 1024, rest_cols=128)).text
    assert "columns = tl.arange(0, 1024)[None, :]" in text
    assert "columns_rest = tl.arange(1024, 1152)[None, :]" in text
    assert "columns < cols" not in text
    assert "in_bounds_rest = columns_rest < cols" in text
