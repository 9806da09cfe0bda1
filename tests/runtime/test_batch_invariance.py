"""Batch invariance: a row has the same bits alone and in any batch, because plans do not depend on the batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from torch_versions import compiles
from tridal.devices import registry, settings
from tridal.devices.types import KernelConfig
from tridal.kernels.row_kernel import RowKernel
from tridal.library.softmax.softmax import LOG_SOFTMAX, SOFTMAX
from tridal.ops import planning
from tridal.runtime import launch
from tridal.runtime.row_layout import contiguous_strides, row_layout
from tridal.runtime.scale_mask import ScaleMask
from tridal.runtime.specialization import KernelCall


@pytest.fixture
def invariant(backend: Any) -> Iterator[torch.device]:
    """A device under test, with the setting batch_invariant."""
    torch.manual_seed(0)
    with tridal.use(device=backend.name, batch_invariant=True):
        yield tridal.device()


def test_a_row_and_its_gradient_are_the_same_alone_and_in_batches(backend: Any, invariant: torch.device) -> None:
    largest, cols = 10 if backend.interpreted else 300, 781  # on a device, more rows than programs
    batch, grads = torch.randn(2, largest, cols, device=invariant).bfloat16().unbind()

    def compute(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_()
        y = tridal.log_softmax(x)
        return y.detach(), torch.autograd.grad(y, x, g)[0]

    expected = compute(batch, grads)
    assert_close(expected[0].float(), torch.log_softmax(batch.float(), -1), rtol=1e-2, atol=1e-2)
    for part in (slice(0, 1), slice(5, 6), slice(largest - 9, largest), slice(0, largest)):
        for actual, of_batch in zip(compute(batch[part], grads[part]), expected, strict=True):
            assert torch.equal(actual, of_batch[part])
    row = compute(batch[5:6].clone(), grads[5:6].clone())
    assert all(map(torch.equal, row, (result[5:6] for result in expected)))


PARTS: dict[str, Callable[[torch.Tensor, slice], torch.Tensor]] = {
    "rows of an inner dim": lambda x, part: tridal.softmax(x.view(20, 33, 40)[part], 1),
    "a mask for all rows": lambda x, part: tridal.softmax(x.view(20, -1)[part], scale=0.5, mask=x.view(20, -1)[0] > 0),
    "a mask with other strides": lambda x, part: tridal.softmax(
        x.view(20, -1)[part, :781], mask=x.view(20, -1)[part, 16:797] > 0
    ),
    "strided rows": lambda x, part: tridal.softmax(x.view(-1, 20).t()[part]),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_batch_have_the_results_of_the_batch(invariant: torch.device, name: str) -> None:
    x = torch.randn(20 * 33 * 40, device=invariant)
    whole = PARTS[name](x, slice(0, 20))
    for part in (slice(0, 1), slice(7, 16)):
        assert torch.equal(PARTS[name](x, part), whole[part])


def test_results_do_not_depend_on_strides_or_alignment(invariant: torch.device) -> None:
    x, padded = torch.randn(9, 64, device=invariant), torch.randn(9, 200, device=invariant)
    y = tridal.softmax(x)
    padded[:, 5:69] = x
    for same in (padded[:, 5:69], x.t().contiguous().t(), _misaligned(x)):
        assert torch.equal(tridal.softmax(same), y)


def _misaligned(x: torch.Tensor) -> torch.Tensor:
    """A copy whose address depends on the number of rows."""
    memory = x.new_empty(x.numel() + 16)
    return torch.cat([memory[: 16 * (len(x) % 2)], x.flatten()])[16 * (len(x) % 2) :].view(x.shape)


FUSED: dict[str, Any] = {
    "rms_norm": lambda x, r, w, t: tridal.rms_norm(x, x.shape[-1:], w, residual=r)[0].sum(-1),
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
        (SOFTMAX.forward, 131_072, "row"), (LOG_SOFTMAX.backward, 781, "row"), (SOFTMAX.forward, 781, "inner"),
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
        for rows in (1, 100, 100_000):
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
