"""Calls of kernels: constants, outputs, layouts of the inputs, and the calls that are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tridal
from tridal.devices.types import Backend
from tridal.errors import ShapeError
from tridal.ops import NoKernel
from tridal.pytorch.device_context import DeviceContext, device_context
from tridal.pytorch.path.kernel_calls import launch_kernel
from tridal.pytorch.path.run_source import KernelUse

pytest.importorskip("triton")

import triton
import triton.language as tl

import row_tensors
from tridal.kernels.row_kernel import RowKernel, Statistic
from tridal.runtime.specialization import KernelCall

F32 = torch.float32


@triton.jit
def weighted_square(x, weight):
    return x * x if weight is None else x * x * weight


@triton.jit
def rounded_sum(squares, SUM_DTYPE: tl.constexpr, FACTOR: tl.constexpr):
    return squares.to(SUM_DTYPE).to(tl.float32) * FACTOR


@triton.jit
def picked_product(picked, picked_weight):
    return picked if picked_weight is None else picked * picked_weight


SQUARES = RowKernel(
    name="squares", module=__name__, reads=("x",), row_index="index", column_reads=("weight",), writes=(),
    statistics=(Statistic("squares", "sum", term="weighted_square"),), row_writes=("rounded_sum", "picked_product"),
    neutral_padding=True,
)  # fmt: skip


@triton.jit
def one_more(x):
    return x + 1.0


@pytest.fixture
def context(backend: Backend, device: torch.device) -> Iterator[DeviceContext]:
    with tridal.use(device=backend.name, fallback="error"):
        yield device_context(device)


def run_kernel(
    context: DeviceContext, kernel: RowKernel, dim: int, inputs: tuple[torch.Tensor, ...], *arguments: Any,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...] | None:  # fmt: skip
    given = () if out is None else (out,)
    try:
        return launch_kernel(context, KernelUse(kernel, dim, *arguments), len(given), *given, *inputs)
    except NoKernel:
        return None


def run(context: DeviceContext, kernel: RowKernel, *inputs: torch.Tensor, **keywords: Any) -> tuple[torch.Tensor, ...]:
    dtypes = (F32,) * (len(kernel.writes) + len(kernel.row_writes))
    results = run_kernel(context, kernel, 1, inputs, dtypes, **keywords)
    assert results is not None
    return results


def test_constants_replace_tensors_and_reach_functions(context: DeviceContext, device: torch.device) -> None:
    x, weight = torch.randn(5, 37, device=device), torch.rand(37, device=device)
    index = torch.randint(37, (5,), device=device)
    picked = x.gather(1, index[:, None])[:, 0]
    kernel = SQUARES.bind(SUM_DTYPE="bfloat16", FACTOR=2.0)
    total, product = run(context, kernel, x, index, weight)
    torch.testing.assert_close(total, (x * x * weight).sum(1).bfloat16().float() * 2, rtol=2**-7, atol=0)
    torch.testing.assert_close(product, picked * weight[index])
    assert (total / 2 == (total / 2).bfloat16()).all()
    total, product = run(context, kernel.bind(weight=None), x, index)
    torch.testing.assert_close(total, (x * x).sum(1).bfloat16().float() * 2, rtol=2**-7, atol=0)
    torch.testing.assert_close(product, picked, rtol=0, atol=0)


def test_an_index_out_of_range_picks_nan_and_a_weight_of_zero(context: DeviceContext, device: torch.device) -> None:
    x, index = torch.ones(3, 8, device=device), torch.tensor([-1, 8, 7], device=device)
    kernel = SQUARES.bind(SUM_DTYPE="float32", FACTOR=1.0, weight=None).writing("picked_product")
    (product,) = run(context, kernel, x, index)
    assert torch.isnan(product).tolist() == [True, True, False]


@pytest.mark.parametrize("shape", [(1, 20), (5, 7), (2, 3, 40)])
def test_rows_beyond_the_last_one_add_nothing_to_sums(
    context: DeviceContext, device: torch.device, shape: tuple[int, ...]
) -> None:
    kernel = RowKernel("more", __name__, ("x",), (), ("one_more",), column_writes=("one_more",))
    x = torch.randint(9, shape, device=device).float()
    for dim in range(x.dim()):
        found = run_kernel(context, kernel, dim, (x,), (F32,))
        assert found is not None
        others = [other for other in range(x.dim()) if other != dim]
        assert torch.equal(found[0], x + 1)
        assert torch.equal(found[1], (x + 1).sum(others))


def test_out_may_be_the_first_input(context: DeviceContext, device: torch.device) -> None:
    kernel = row_tensors.CROSS_ENTROPY_BACKWARD
    for offset in (0, 1):
        memory = torch.randn(5 * 37 + offset, device=device)
        x, target = memory[offset:].view(5, 37), torch.randint(37, (5,), device=device)
        lse, dy = x.logsumexp(1), torch.rand(5, device=device)
        (apart,) = run(context, kernel, x, lse, dy, target)
        (inside,) = run(context, kernel, x, lse, dy, target, out=x)
        assert inside is x
        torch.testing.assert_close(inside, apart, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(5, 37), (3, 37, 5)])
def test_out_may_have_unused_elements_between_rows(
    context: DeviceContext, device: torch.device, shape: tuple[int, ...]
) -> None:
    kernel, memory = row_tensors.CROSS_ENTROPY_BACKWARD, torch.randn(*shape[:-1], shape[-1] + 3, device=device)
    x, rows = memory[..., : shape[-1]], (shape[0], *shape[2:])
    target, dy = torch.randint(37, rows, device=device), torch.rand(rows, device=device)
    unused, inputs = memory[..., shape[-1] :].clone(), (x, x.logsumexp(1), dy, target)
    (apart,), original = run(context, kernel, *inputs), x.clone()
    (inside,) = run(context, kernel, *inputs, out=x)
    assert inside is x
    torch.testing.assert_close(inside, apart, rtol=1e-6, atol=1e-7)
    assert torch.equal(memory[..., shape[-1] :], unused)
    with tridal.use(batch_invariant=True):
        x.copy_(original)
        run(device_context(device), kernel, *inputs, out=x)
        torch.testing.assert_close(x, apart, rtol=1e-6, atol=1e-7)
        assert torch.equal(memory[..., shape[-1] :], unused)


@pytest.mark.parametrize(
    ("name", "position", "shape", "message"),
    [
        ("squares", 2, (16,), "weight must have the shape (4096,), got (16,): a number per column of"),
        ("squares", 1, (5, 2), "index must have the shape (5,), got (5, 2): a number per row of"),
        ("rms_norm_backward", 1, (4, 4096), "x must have the shape (5, 4096), got (4, 4096): a number per element of"),
    ],
)
def test_wrong_shape_is_refused_before_a_kernel_reads_beyond_the_end(
    context: DeviceContext, device: torch.device, name: str, position: int, shape: tuple[int, ...], message: str
) -> None:
    """A weight of 16 numbers for 4,096 columns, for example."""
    kernels = {kernel.name: kernel for kernel in (SQUARES, row_tensors.RMS_NORM_BACKWARD)}
    kernel, x = kernels[name], torch.ones(5, 4096, device=device)
    per_row, weight = torch.ones(5, device=device), torch.ones(4096, device=device)
    inputs = [x, per_row.long(), weight] if kernel is SQUARES else [x, x, per_row, weight]
    inputs[position] = torch.ones(shape, dtype=inputs[position].dtype, device=device)
    with pytest.raises(ShapeError) as raised:
        run(context, kernel, *inputs)
    first = kernel.reads[0]
    assert str(raised.value).startswith(f"{name}: {message}")
    assert str(raised.value).endswith(f" of {first}, which has the shape (5, 4096) and rows along dim 1")


LIKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": torch.clone,
    "rows": lambda x: x[:4],
    "columns": lambda x: x[:, :47].contiguous(),
    "float16": torch.Tensor.half,
    "strides": lambda x: x.t().contiguous().t(),
    "unaligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "negative": lambda x: torch._neg_view(-x),
    "batch invariant": torch.clone,
}


@pytest.mark.parametrize("name", LIKE)
def test_a_launch_computes_only_tensors_like_its_own(
    planned: list[KernelCall], context: DeviceContext, device: torch.device, name: str
) -> None:
    kernel, x = RowKernel("more", __name__, ("x",), (), ("one_more",)), torch.randn(5, 48, device=device)
    for kind in ("plain", name) * 2:
        given = LIKE[kind](x)
        with tridal.use(batch_invariant=kind == "batch invariant"):
            found = run_kernel(device_context(device), kernel, 1, (given,), (F32,))
        assert found is not None
        assert torch.equal(found[0], given.float() + 1)
    assert len(planned) == 1 + (name != "plain")


def test_torch_computes_empty_and_unsupported_tensors(context: DeviceContext, device: torch.device) -> None:
    x, dy = torch.randn(0, 37, device=device), torch.rand(0, device=device)
    index = torch.zeros(0, dtype=torch.int64, device=device)
    assert run_kernel(context, row_tensors.CROSS_ENTROPY_BACKWARD, 1, (x, dy, dy, index), (F32,)) is None
    with tridal.use(fallback="torch"):
        plain = device_context(device)
        narrow, dy = torch.randn(2, 3, device=device).to(torch.float8_e5m2), torch.rand(2, device=device)
        inputs = (narrow, dy, dy, torch.zeros(2, dtype=torch.int64, device=device))
        assert run_kernel(plain, row_tensors.CROSS_ENTROPY_BACKWARD, 1, inputs, (F32,)) is None


@triton.jit
def plus_column(x, column):
    return x + column


@pytest.mark.parametrize(
    ("function", "shape", "planned"),
    [
        ("one_more", (48, 7), (3, 112)),
        ("one_more", (2, 16, 7), (2, 112)),
        ("one_more", (16, 7), (16, 7)),  # a plan for one row serves other numbers of columns
        ("one_more", (48, 32), (48, 32)),  # rows are aligned
        ("plus_column", (48, 7), (48, 7)),
    ],
)
def test_contiguous_unaligned_rows_are_merged_if_elements_are_computed_alone(
    context: DeviceContext, device: torch.device, caplog: pytest.LogCaptureFixture, function: str,
    shape: tuple[int, ...], planned: tuple[int, int],
) -> None:  # fmt: skip
    kernel = RowKernel(name=function, module=__name__, reads=("x",), statistics=(), writes=(function,))
    x = torch.randn(shape, device=device)
    added = 1 if function == "one_more" else torch.arange(shape[-1], device=device)
    with caplog.at_level("DEBUG", logger="tridal"):
        found = run_kernel(context, kernel, x.dim() - 1, (x,), (F32,))
    assert found is not None
    assert torch.equal(found[0], x + added)
    assert f"Problem(cols={planned[1]}, inner={planned[0]}, " in caplog.text
    for part in (slice(shape[0] - 1), slice(1, None)):  # other rows, strides and alignment
        (found,) = run_kernel(context, kernel, x.dim() - 1, (x[part],), (F32,)) or ()
        assert torch.equal(found, x[part] + added)
    strided = torch.randn(*shape[:-1], 9, device=device)[..., 1:8] if shape[-1] == 7 else x
    (found,) = run_kernel(context, kernel, x.dim() - 1, (strided,), (F32,)) or ()
    assert torch.equal(found, strided + added)
