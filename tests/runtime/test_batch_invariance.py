"""Batch invariance: a row has the same bits alone and in any batch, because plans do not depend on the batch size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from recording_backend import RowsDecide, serving
from torch_versions import compiles
from tridal.devices import registry, settings
from tridal.devices.types import KernelConfig
from tridal.kernels.row_kernel import RowKernel
from tridal.library.softmax.log_softmax import LOG_SOFTMAX
from tridal.library.softmax.softmax import SOFTMAX
from tridal.ops import planning
from tridal.runtime import launch
from tridal.runtime.row_layout import contiguous_strides, row_layout
from tridal.runtime.scale_mask import ScaleMask
from tridal.runtime.specialization import KernelCall

ROWS = (1, 9, 33)


@pytest.fixture
def invariant(backend: Any) -> Iterator[torch.device]:
    """A device under test, with the setting batch_invariant."""
    torch.manual_seed(0)
    with tridal.use(device=backend.name, batch_invariant=True):
        yield tridal.device()


@pytest.mark.parametrize(
    ("name", "cols", "dtype"), [("softmax", 64, torch.float32), ("log_softmax", 781, torch.bfloat16)]
)
def test_a_row_and_its_gradient_are_the_same_alone_and_in_batches(
    backend: Any, invariant: torch.device, name: str, cols: int, dtype: torch.dtype
) -> None:
    op = getattr(tridal, name)
    largest = 10 if backend.interpreted else 300  # on a device, more rows than programs
    batch = torch.randn(largest, cols, device=invariant).to(dtype)
    grads = torch.randn(largest, cols, device=invariant).to(dtype)

    def compute(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_()
        y = op(x)
        return y.detach(), torch.autograd.grad(y, x, g)[0]

    expected = compute(batch, grads)
    assert_close(expected[0].float(), getattr(torch, name)(batch.float(), -1), rtol=1e-2, atol=1e-2)
    for rows in (*(rows for rows in ROWS if rows < largest), largest):
        for first in {0, largest - rows}:
            part = slice(first, first + rows)
            for actual, of_batch in zip(compute(batch[part], grads[part]), expected, strict=True):
                assert torch.equal(actual, of_batch[part])
    row = compute(batch[5:6].clone(), grads[5:6].clone())
    assert torch.equal(row[0], expected[0][5:6])
    assert torch.equal(row[1], expected[1][5:6])


def test_inner_dim_rows_are_the_same_in_batches_of_any_size(invariant: torch.device) -> None:
    batch = torch.randn(20, 33, 40, device=invariant)
    expected = tridal.softmax(batch, 1)
    for count in (1, 9):
        assert torch.equal(tridal.softmax(batch[7 : 7 + count], 1), expected[7 : 7 + count])


def test_results_do_not_depend_on_strides_or_alignment(invariant: torch.device) -> None:
    x = torch.randn(9, 64, device=invariant)
    y = tridal.softmax(x)
    padded = torch.randn(9, 200, device=invariant)
    padded[:, 5:69] = x
    unaligned = torch.randn(9 * 64 + 1, device=invariant)[1:].view(9, 64).copy_(x)
    for same in (padded[:, 5:69], x.t().contiguous().t(), unaligned):
        assert torch.equal(tridal.softmax(same), y)


def test_masked_rows_are_the_same_in_batches_of_any_size(invariant: torch.device) -> None:
    x = torch.randn(40, 781, device=invariant)
    mask = torch.rand(781, device=invariant) > 0.5
    expected = tridal.softmax(x, scale=0.5, mask=mask)
    for part in (slice(0, 1), slice(30, 40)):
        assert torch.equal(tridal.softmax(x[part], scale=0.5, mask=mask), expected[part])
    masks = torch.rand(40, 784, device=invariant)[:, :781] > 0.5
    expected = tridal.softmax(x, mask=masks)
    for part in (slice(0, 1), slice(30, 40)):
        assert torch.equal(tridal.softmax(x[part], mask=masks[part]), expected[part])


def _misaligned(x: torch.Tensor) -> torch.Tensor:
    """A copy whose address depends on the number of rows."""
    memory = x.new_empty(x.numel() + 16)
    return torch.cat([memory[: 16 * (len(x) % 2)], x.flatten()])[16 * (len(x) % 2) :].view(x.shape)


FUSED: dict[str, Any] = {
    "rms_norm": lambda x, r, w, t: tridal.rms_norm(x, x.shape[-1:], w, residual=r)[0].sum(-1),
    "cross_entropy and lse": lambda x, r, w, t: torch.add(
        *tridal.cross_entropy(x * 1, t, w, reduction="none", return_lse=True)
    ),
    "cross_entropy and lse of a slice": lambda x, r, w, t: torch.add(
        *tridal.cross_entropy(_misaligned(x * 1), t, w, reduction="none", return_lse=True)
    ),
    "softmax of its input": lambda x, r, w, t: tridal.softmax(x, dtype=torch.float32).mul(r).sum(-1),
}


@pytest.mark.parametrize(("name", "offset"), [*((name, 1) for name in FUSED), ("rms_norm", 0)])
def test_slices_of_batches_have_the_same_kernels_and_results(
    invariant: torch.device, name: str, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """112 columns of bfloat16: rows start at multiples of 32 bytes, so those of a slice are less aligned."""
    made, prepare = set(), launch.prepare

    def recording(call: KernelCall, *arguments: Any) -> launch.Launch:
        prepared = prepare(call, *arguments)
        specialization = call.specialize(prepared.plan.config)
        constants = {name: value for name, value in specialization.constants if name != "row_inner"}  # a single row
        if call.kernel.name.startswith(name.split()[0]) and not call.kernel.name.endswith(("reduce", "reduce_all")):
            made.add((call.kernel, prepared.plan.config, specialization.divisible, str(constants)))
        return prepared

    monkeypatch.setattr(launch, "prepare", recording)
    registry.invalidate()
    rows, cols = 6, 112
    memory = [torch.randn(rows * cols + offset, device=invariant).bfloat16()[offset:] for _ in range(3)]
    x, residual, dy = (m.view(rows, cols) for m in memory)
    weight, target = torch.rand(cols, device=invariant).bfloat16(), torch.arange(rows, device=invariant)

    def compute(part: slice) -> list[torch.Tensor]:
        leaf = x[part].detach().requires_grad_()
        result = FUSED[name](leaf, residual[part], weight, target[part])
        return [result.detach(), *torch.autograd.grad(result, leaf, dy[part, 0].to(result.dtype))]

    whole = compute(slice(0, rows))
    kernels = len(made)
    for part in (slice(1, 4), slice(rows - 1, rows)):
        for found, wanted in zip(compute(part), whole, strict=True):
            assert torch.equal(found, wanted[part])
    assert len(made) == kernels > 0


def test_backwards_outside_a_block_have_the_kernels_of_the_block() -> None:
    """The first backward prepares a kernel for those after it."""
    pytest.importorskip("triton")
    x, dy = torch.randn(3, 1001, requires_grad=True), torch.randn(3, 1001)
    with serving(RowsDecide()):
        with tridal.use(batch_invariant=True):
            results = [tridal.softmax(x) for _ in range(4)]
        first, *others = (torch.autograd.grad(y, x, dy)[0] for y in results[:3])
        with tridal.use(batch_invariant=True):
            (expected,) = torch.autograd.grad(results[3], x, dy)
        assert all(torch.equal(found, expected) for found in (first, *others))
        (other,) = torch.autograd.grad(tridal.softmax(x), x, dy)
    assert_close(other, expected)
    assert not torch.equal(other, expected)


def test_an_invariant_call_promises_no_alignment_of_a_mask() -> None:
    layout, config = row_layout((64, 1024), (1024, 1), 1, 0), KernelConfig("whole_row", 1, 1024)
    scale_mask = ScaleMask(mask="uint8", strides=(1024, 0, 0, 1))
    assert layout is not None
    promised = []
    for invariant in (False, True):
        call = KernelCall(SOFTMAX.forward, layout, ("float32", "float32"), (), (), scale_mask, invariant)
        promised.append(dict(call.specialize(config).constants)["MASK_BYTES"])
    assert promised == [4, 1]


@pytest.mark.parametrize(
    ("kernel", "cols", "layout"),
    [
        (SOFTMAX.forward, 64, "row"), (SOFTMAX.forward, 131_072, "row"), (LOG_SOFTMAX.backward, 781, "row"),
        (SOFTMAX.forward, 781, "inner"),
    ],
)  # fmt: skip
def test_plans_and_specializations_are_the_same_for_any_number_of_rows(
    kernel: RowKernel, cols: int, layout: str
) -> None:
    """For all architectures of all backends that the installed Triton compiles for. They need not be present."""
    dtypes = ("bfloat16",) * (1 + len(kernel.reads))
    for backend, device in {id(b): (b, d) for b, d in planning.architectures().values()}.values():
        if not compiles(backend.name):
            continue
        found = set()
        for rows in (1, 3, 100, 100_000):
            shape, dim = ((rows, cols), 1) if layout == "row" else ((rows, cols, 5), 1)
            rows_of_shape = row_layout(shape, contiguous_strides(shape), dim, 0)
            assert rows_of_shape is not None
            call = KernelCall(kernel, rows_of_shape, dtypes, invariant=True)
            options = registry.options(backend, settings.current())
            plan = launch.plan(call, backend, device, options)
            assert call.programs(plan) % plan.config.programs_per_row == 0
            assert "batch-invariant" in plan.reason
            specialization = call.specialize(plan.config)
            found.add((plan.config, specialization.divisible, specialization.constants))
        assert len(found) == 1, backend.name
