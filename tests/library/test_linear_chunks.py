"""The chunks of tridal.linear_cross_entropy: their rows, roundings of sums, and classes in vectors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn import functional

import tridal
from tridal.library.losses import linear_chunks
from tridal.library.losses.linear_chunks import chunk_rows

BF16, FP32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("rows", "shape", "dtypes", "wanted"),
    [
        (8192, (128256, 4096), (BF16, FP32), 4096), (8192, (50257, 768), (BF16, FP32), 2048),
        (8192, (128256, 4096), (BF16, BF16), 2048), (8192, (128256, 2048), (BF16, BF16), 1024),
        (10**6, (10**6, 16), (FP32, FP32), 67), (0, (5, 4), (FP32, FP32), 1),
        (2**26 + 1, (0, 8), (FP32, FP32), 262_145 * 128),
        # 256 MiB of logits have 130, 1,024 and 2,048 rows.
        (130, (2**26 // 130, 8), (FP32, FP32), 130), (1025, (2**26 // 130, 8), (FP32, FP32), 128),
        (2059, (2**16, 8), (FP32, FP32), 768),
    ],
)  # fmt: skip
def test_chunks_follow_from_shapes_and_dtypes(rows: int, shape: Any, dtypes: Any, wanted: int) -> None:
    assert chunk_rows(rows, torch.empty(shape, device="meta", dtype=dtypes[0]), *dtypes) == wanted


def test_rows_of_logits_are_aligned_only_for_a_kernel_that_reads_many_16_bit_classes() -> None:
    with mock.patch.object(linear_chunks, "sums_in", return_value=True):

        def vector(columns: int = 129, dtype: torch.dtype = torch.bfloat16, **given: bool) -> int:
            call: Any = SimpleNamespace(**{"torch_computes": False, "batch_invariant": False, **given})
            return linear_chunks.vector_of(call, torch.zeros(4, 3, dtype=dtype), columns)

        assert vector() == 8
        assert vector(128) == vector(dtype=torch.float32) == 1
        assert vector(torch_computes=True) == vector(batch_invariant=True) == 1


def test_the_gradient_of_the_weight_is_rounded_once(device: torch.device) -> None:
    x, weight = (torch.randn(n, 64, device=device).bfloat16() for n in (40, 50))
    target, factor = torch.randint(50, (40,), device=device), torch.tensor(0.30078125, device=device)
    grads = []
    for dtype in (torch.bfloat16, torch.float32):
        leaf = weight.detach().to(dtype).requires_grad_()
        with torch.autocast(device.type, torch.bfloat16):
            loss = tridal.linear_cross_entropy(x, leaf, target, chunk_size=16)
        loss.backward(factor)
        grads.append(leaf.grad)
    assert grads[0] is not None
    assert grads[1] is not None
    assert torch.equal(grads[0], grads[1].bfloat16())


def test_gradients_of_weight_and_bias_are_not_rounded_between_chunks(device: torch.device) -> None:
    """Two classes with equal logits have gradients of a half, whose sums of chunks need more bits than bfloat16 has."""
    x, target = torch.ones(8 * 515, 3, device=device), torch.zeros(8 * 515, dtype=torch.long, device=device)
    weight, bias = (torch.zeros(shape, device=device, requires_grad=True) for shape in ((2, 3), 2))
    with torch.autocast(device.type, torch.bfloat16):
        loss = tridal.linear_cross_entropy(x, weight, target, linear_bias=bias, chunk_size=515, reduction="sum")
    found = torch.autograd.grad(loss, (weight, bias))
    assert [gradient.tolist() for gradient in found] == [[[-4 * 515] * 3, [4 * 515] * 3], [-4 * 515, 4 * 515]]


@pytest.fixture
def with_vectors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes calls align and split the logits, as on a GPU. New memory is NaN."""
    monkeypatch.setattr(linear_chunks, "needs_vectors", lambda device, dtype: True)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.usefixtures("with_vectors")
def test_the_gradient_of_the_weight_of_no_rows_is_zero(device: torch.device) -> None:
    x, weight = (torch.randn(rows, 4, device=device, requires_grad=True) for rows in (0, 5))
    loss = tridal.linear_cross_entropy(x, weight, torch.zeros(0, dtype=torch.long, device=device), reduction="sum")
    assert torch.autograd.grad(loss, weight)[0].tolist() == torch.zeros(5, 4).tolist()


@pytest.mark.usefixtures("with_vectors")
def test_memory_between_rows_that_a_matmul_may_read_has_numbers(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def checked(compute: Callable[..., torch.Tensor], *tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        for tensor in tensors:
            memory = torch.empty(0, dtype=tensor.dtype, device=device).set_(tensor.untyped_storage())
            assert not memory.isnan().any()
            seen.append(tensor.stride(-1) > tensor.shape[0])
        return compute(*tensors, **options)

    for name in ("mm", "addmm"):
        monkeypatch.setattr(torch, name, functools.partial(checked, getattr(torch, name)))
    x, weight = (torch.randn(rows, 24, device=device, requires_grad=True) for rows in (40, 137))
    tridal.linear_cross_entropy(x, weight, torch.arange(40, device=device), chunk_size=16).backward()
    assert any(seen)


@pytest.mark.usefixtures("with_vectors")
@pytest.mark.parametrize(
    ("classes", "dtype", "needs"),
    [
        (5, torch.bfloat16, (True, True, True)), (137, torch.bfloat16, (True, True, True)),
        (137, torch.float16, (True, False, False)), (137, torch.float16, (False, True, False)),
        (144, torch.bfloat16, (False, False, True)), (137, torch.float32, (True, True, True)),
    ],
)  # fmt: skip
def test_classes_in_vectors_and_the_rest_equal_torch(
    device: torch.device, classes: int, dtype: torch.dtype, needs: tuple[bool, ...]
) -> None:
    tensors = [torch.randn(size, device=device).to(dtype) for size in ((40, 24), (classes, 24), (classes,))]
    for tensor, need in zip(tensors, needs, strict=True):
        tensor.requires_grad_(need)
    target = torch.randint(classes, (40,), device=device)
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    loss = tridal.linear_cross_entropy(*tensors[:2], target, linear_bias=tensors[2], chunk_size=16)
    gradients = torch.autograd.grad(loss, wanted)
    logits = functional.linear(*(tensor.double() for tensor in tensors))
    expected = functional.cross_entropy(logits, target)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(loss.double(), expected, rtol=4 * eps, atol=0)
    for found, exact in zip(gradients, torch.autograd.grad(expected, wanted), strict=True):
        # Logits of a size of 25 are rounded to the dtype.
        torch.testing.assert_close(found, exact, rtol=0.0, atol=16 * eps * float(exact.abs().max()))


@pytest.mark.usefixtures("with_vectors")
def test_the_sum_of_parts_is_not_rounded_between_them(device: torch.device) -> None:
    x = torch.ones(1, 1, dtype=torch.float16, device=device, requires_grad=True)
    matrix = torch.full((129, 1), 40.0, dtype=torch.float16, device=device)
    bias = torch.zeros(129, dtype=torch.float16, device=device)
    bias[128] = 10
    target = torch.tensor([0], device=device)
    loss = tridal.linear_cross_entropy(x, matrix, target, linear_bias=bias, reduction="none")
    (found,) = torch.autograd.grad(loss, x, torch.full_like(loss, 2048))
    assert found.abs() < 64, "the sum over the first 128 classes is -81,450, beyond float16"
