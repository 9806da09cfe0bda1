"""Calls of kernels: constants, outputs, layouts of the inputs, and the calls that are kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import torch

import tridal
from tridal.devices.types import Backend
from tridal.errors import ShapeError
from tridal.pytorch.device_context import DeviceContext, device_context
from tridal.pytorch.path.kernel_calls import launch_kernel
from tridal.pytorch.path.run_source import KernelUse

pytest.importorskip("triton")

import triton
import triton.language as tl

from tridal.kernels.row_kernel import RowKernel, Statistic
from tridal.library.softmax.softmax import SOFTMAX
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


def run(
    context: DeviceContext, kernel: RowKernel, *inputs: torch.Tensor, dim: int = 1, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    given, dtypes = () if out is None else (out,), (F32,) * (len(kernel.writes) + len(kernel.row_writes))
    return launch_kernel(context, KernelUse(kernel, dim, dtypes), len(given), *given, *inputs)


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
        found = run(context, kernel, x, dim=dim)
        others = [other for other in range(x.dim()) if other != dim]
        assert torch.equal(found[0], x + 1)
        assert torch.equal(found[1], (x + 1).sum(others))


@pytest.mark.parametrize(
    ("shape", "unused", "offset"), [((5, 37), 0, 0), ((5, 37), 0, 1), ((5, 37), 3, 0), ((3, 37, 5), 3, 0)]
)
def test_out_may_be_the_first_input_with_unused_elements_between_rows(
    context: DeviceContext, device: torch.device, shape: tuple[int, ...], unused: int, offset: int
) -> None:
    kernel, (*before, last) = SOFTMAX.backward.bind(scale=1.0), shape
    wide = *before, last + unused
    memory = torch.randn(offset + torch.Size(wide).numel(), device=device)[offset:].view(wide)
    dy, y = memory[..., :last], torch.randn(shape, device=device).softmax(1)
    between, original, inputs = memory[..., last:].clone(), dy.clone(), (dy, y)
    (apart,) = run(context, kernel, *inputs)
    for invariant in (False, True):
        dy.copy_(original)
        with tridal.use(batch_invariant=invariant):
            (inside,) = run(device_context(device), kernel, *inputs, out=dy)
        assert inside is dy
        torch.testing.assert_close(inside, apart, rtol=1e-6, atol=1e-7)
        assert torch.equal(memory[..., last:], between)


@pytest.mark.parametrize(
    ("position", "shape", "message"),
    [
        (2, (16,), "weight must have the shape (4096,), got (16,): a number per column of x"),
        (1, (5, 2), "index must have the shape (5,), got (5, 2): a number per row of x"),
    ],
)
def test_wrong_shape_is_refused_before_a_kernel_reads_beyond_the_end(
    context: DeviceContext, device: torch.device, position: int, shape: tuple[int, ...], message: str
) -> None:
    """A weight of 16 numbers for 4,096 columns, for example."""
    inputs = [torch.ones(5, 4096), torch.ones(5, dtype=torch.int64), torch.ones(4096)]
    inputs[position] = torch.ones(shape, dtype=inputs[position].dtype)
    with pytest.raises(ShapeError, match=re.escape(f"squares: {message}, which has the shape (5, 4096)")):
        run(context, SQUARES, *(tensor.to(device) for tensor in inputs))


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
            found = run(device_context(device), kernel, given)
        assert torch.equal(found[0], given.float() + 1)
    assert len(planned) == 1 + (name != "plain")


@triton.jit
def plus_column(x, column):
    return x + column


@pytest.mark.parametrize(
    ("function", "shape", "planned"),
    [
        ("one_more", (48, 7), (3, 112)),
        ("one_more", (2, 16, 7), (2, 112)),
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
        found = run(context, kernel, x, dim=x.dim() - 1)
    assert torch.equal(found[0], x + added)
    assert f"Problem(cols={planned[1]}, inner={planned[0]}, " in caplog.text
    for part in (slice(shape[0] - 1), slice(1, None)):  # other rows, strides and alignment
        (found,) = run(context, kernel, x[part], dim=x.dim() - 1)
        assert torch.equal(found, x[part] + added)
    strided = torch.randn(*shape[:-1], 9, device=device)[..., 1:8] if shape[-1] == 7 else x
    (found,) = run(context, kernel, strided, dim=x.dim() - 1)
    assert torch.equal(found, strided + added)
