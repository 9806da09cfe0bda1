"""Offsets of elements of 2^31 and more, in each tensor of a call and along each dim of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch.testing import assert_close

import tridal
from checked_memory import checked_memory

pytest.importorskip("triton")
Tensor = torch.Tensor
Make = Callable[..., Tensor]
WIDE = 1 << 30
"""A stride. Three of them are beyond 32 bits, and the stride itself is not."""


@pytest.fixture
def make() -> Iterator[Make]:
    """make(shape, strides, dtype) returns random numbers in a part of one large memory, of which few pages exist."""
    try:
        memory = torch.empty(2 * (3 * WIDE + 4096), dtype=torch.uint8)
    except RuntimeError:
        pytest.skip("the device has too little memory")
    starts = iter(range(0, 4096, 512))

    def made(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype = torch.float16) -> Tensor:
        tensor = memory.view(dtype).as_strided(tuple(shape), tuple(strides), next(starts))
        return tensor.copy_(torch.randn(tuple(shape)) > 0 if dtype is torch.bool else torch.randn(tuple(shape)))

    with tridal.use(device="interpreter"), checked_memory():
        yield made


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((4, 8), (WIDE, 1)), ((8, 4), (2, WIDE)), ((4, 3, 8), (WIDE, 16, 1)), ((3, 4, 8), (16, WIDE, 1)),
        ((3, 8, 4), (16, 1, WIDE)), ((4, 8, 3), (WIDE, 1, 16)),
    ],
)  # fmt: skip
def test_input_of_a_softmax(make: Make, shape: Sequence[int], strides: Sequence[int]) -> None:
    x = make(shape, strides)
    assert_close(tridal.softmax(x).float(), torch.softmax(x.float(), -1), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("wide", "shape", "strides"),
    [
        ("dy", (4, 8), (WIDE, 1)), ("gate", (2, 2, 3, 8), (3 << 29, WIDE >> 2, 16, 1)), ("gate, up", (4, 8), (WIDE, 1)),
        ("dy, up", (2, 2, 3, 8), (3 << 29, WIDE >> 2, 16, 1)),
    ],
)  # fmt: skip
def test_tensors_of_a_gated_activation_and_its_gradient(
    make: Make, wide: str, shape: Sequence[int], strides: Sequence[int]
) -> None:
    """Two wide tensors have different strides, and the results are contiguous: three groups of strides."""
    tensors = {}
    for name in ("dy", "gate", "up"):
        known = [other for other in tensors if other in wide]
        offsets = (strides[0] - 64 * len(known), *strides[1:])
        tensors[name] = make(shape, offsets) if name in wide else torch.randn(tuple(shape)).half()
    dy, *leaves = (tensor.requires_grad_(name != "dy") for name, tensor in tensors.items())
    gate, up = (leaf.detach().double().requires_grad_() for leaf in leaves)
    y, expected = tridal.swiglu(*leaves), torch.nn.functional.silu(gate) * up
    found = (y, *torch.autograd.grad(y, leaves, dy))
    for one, wanted in zip(found, (expected, *torch.autograd.grad(expected, (gate, up), dy.double())), strict=True):
        assert_close(one.double(), wanted, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("dim", range(4))
@pytest.mark.parametrize("dtype", [torch.bool, torch.float16])
def test_mask_of_a_softmax(make: Make, dim: int, dtype: torch.dtype) -> None:
    shape, strides = [2, 2, 2, 4], [256, 64, 8, 1]
    shape[dim], strides[dim] = 4, WIDE
    x, mask = torch.randn(shape), make(shape, strides, dtype)
    bias = torch.where(mask, 0.0, -torch.inf) if dtype is torch.bool else mask.float()
    assert_close(tridal.softmax(x, mask=mask), torch.softmax(x + bias, -1), equal_nan=True)
