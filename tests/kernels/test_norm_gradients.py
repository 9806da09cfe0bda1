"""Gradients of norms: numbers per row of many blocks of rows, and sums over the rows of several programs."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import tridal


def test_many_blocks_of_few_rows_have_the_gradients_of_torch(device: torch.device) -> None:
    """A tile has rows of several blocks, and a number per row has other strides than the rows."""
    x = torch.randn(20, 4, 16, device=device)[:, :3].requires_grad_()
    dy = torch.randn(20, 4, 16, device=device)[:, :3]
    y, expected = tridal.rms_norm(x, (16,)), functional.rms_norm(x, (16,))
    assert_close(y, expected)
    assert_close(*(torch.autograd.grad(result, x, dy)[0] for result in (y, expected)))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.float64, 1e-13), (torch.bfloat16, 2**-7)])
def test_the_gradient_of_a_weight_is_the_sum_over_the_rows_of_all_programs(
    device: torch.device, dtype: torch.dtype, error: float
) -> None:
    """The interpreter truncates to bfloat16, which devices do not."""
    x, dy = torch.randn(2, 50, 130, device=device, dtype=dtype).unbind()
    weight = torch.rand(130, device=device, dtype=dtype, requires_grad=True)
    config = {"schedule": "whole_row", "rows": 2, "cols": 256}
    name = str(dtype).removeprefix("torch.")
    with tridal.use(kernel_configs=[{"kernel": "rms_norm_backward", "dtype": name, "cols": 130, "config": config}]):
        (found,) = torch.autograd.grad(tridal.rms_norm(x, (130,), weight), weight, dy)
    (expected,) = torch.autograd.grad(functional.rms_norm(x.double(), (130,), weight.double()), weight, dy.double())
    assert_close(found, expected, rtol=0, atol=error * float(expected.abs().max()))
