"""Batch invariance: a row's bits, alone and in batches of any size, and plans that don't hang on the number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from tridal.devices import registry, settings
from tridal.devices.types import Problem, Resources, Tile
from tridal.ops import planning
from tridal.runtime import batch_invariance as invariance
from tridal.runtime import launch
from tridal.runtime import row_layout as geometry
from tridal.runtime import specialization as variants
from tridal.runtime.scale_mask import Weighing

ROWS = (1, 2, 9, 33, 300)


@pytest.fixture
def invariant(backend: Any) -> Iterator[torch.device]:
    torch.manual_seed(0)
    with tridal.use(device=backend.name, batch_invariant=True):
        yield tridal.device()


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("cols", [64, 781, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_alone_and_in_batches(invariant: torch.device, name: str, cols: int, dtype: torch.dtype) -> None:
    op = getattr(tridal, name)
    batch = torch.randn(max(ROWS), cols, device=invariant).to(dtype)
    grads = torch.randn(max(ROWS), cols, device=invariant).to(dtype)

    def bits(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_()
        y = op(x)
        return y.detach(), torch.autograd.grad(y, x, g)[0]

    whole = bits(batch, grads)
    assert_close(whole[0].float(), getattr(torch, name)(batch.float(), -1), rtol=1e-2, atol=1e-2)
    for rows in ROWS:
        for first in {0, max(ROWS) - rows}:
            part = slice(first, first + rows)
            for ours, of_whole in zip(bits(batch[part], grads[part]), whole, strict=True):
                assert torch.equal(ours, of_whole[part])
        row = bits(batch[5:6].clone(), grads[5:6].clone())
        assert torch.equal(row[0], whole[0][5:6])
        assert torch.equal(row[1], whole[1][5:6])


@pytest.mark.parametrize("trailing", [3, 40])
def test_blocks_of_rows(invariant: torch.device, trailing: int) -> None:
    batch = torch.randn(50, 33, trailing, device=invariant)
    whole = tridal.softmax(batch, 1)
    for count in (1, 2, 9):
        assert torch.equal(tridal.softmax(batch[7 : 7 + count], 1), whole[7 : 7 + count])


def test_however_it_lies(invariant: torch.device) -> None:
    x = torch.randn(9, 64, device=invariant)
    y = tridal.softmax(x)
    apart = torch.randn(9, 200, device=invariant)
    apart[:, 5:69] = x
    off = torch.randn(9 * 64 + 1, device=invariant)[1:].view(9, 64).copy_(x)
    for same in (apart[:, 5:69], x.t().contiguous().t(), off):
        assert torch.equal(tridal.softmax(same), y)


def test_masked_rows(invariant: torch.device) -> None:
    x = torch.randn(300, 781, device=invariant)
    mask = torch.rand(781, device=invariant) > 0.5
    whole = tridal.softmax(x, scale=0.5, mask=mask)
    for part in (slice(0, 1), slice(5, 14), slice(290, 300)):
        assert torch.equal(tridal.softmax(x[part], scale=0.5, mask=mask), whole[part])
    masks = torch.rand(300, 784, device=invariant)[:, :781] > 0.5
    whole = tridal.softmax(x, mask=masks)
    for part in (slice(0, 1), slice(5, 14), slice(290, 300)):
        assert torch.equal(tridal.softmax(x[part], mask=masks[part]), whole[part])


def test_nothing_is_promised_of_a_mask() -> None:
    where, tile = geometry.geometry((64, 1024), (1024, 1), 1, 0), Tile("tile", 1, 1024)
    weighing = Weighing(mask="uint8", strides=(1024, 0, 0, 1))
    assert where is not None
    promised = [
        dict(kind.of("softmax", where, ("float32", "float32"), None, weighing).variant(tile).constants)["MASK_BYTES"]
        for kind in (variants.Call, invariance.InvariantCall)
    ]
    assert promised == [4, 1]


@pytest.mark.parametrize("cols", [64, 781, 12_672, 131_072])
@pytest.mark.parametrize("op", ["softmax", "log_softmax_backward"])
@pytest.mark.parametrize("layout", ["row", "inner"])
def test_plans_and_variants_are_the_same_for_any_number_of_rows(cols: int, op: Any, layout: str) -> None:
    """For every architecture that can be planned for, present or not."""
    dtypes = ("bfloat16",) * (3 if op.endswith("backward") else 2)
    for backend, device in {id(b): (b, d) for b, d in planning.architectures().values()}.values():
        seen = set()
        for rows in (1, 3, 100, 100_000):
            shape, dim = ((rows, cols), 1) if layout == "row" else ((rows, cols, 5), 1)
            where = geometry.geometry(shape, geometry.contiguous_strides(shape), dim, 0)
            assert where is not None
            call = invariance.InvariantCall.of(op, where, dtypes)
            options = registry.options(backend, settings.current())
            planned = launch.plan(call, invariance.invariant(backend), device, options)
            assert planned.programs % planned.tile.split == 0
            assert "batch-invariant" in planned.reason
            variant = call.variant(planned.tile)
            seen.add((planned.tile, variant.divisible, variant.constants))
        assert len(seen) == 1, backend.name


def test_without_the_setting_plans_may_differ(backend: Any) -> None:
    few, many = (Problem("softmax", cols=781, inner=rows) for rows in (1, 100_000))
    device = next(device for other, device in planning.architectures().values() if other is backend)
    options = registry.options(backend, settings.current())

    def probe(tile: Tile) -> Resources:
        return Resources(registers=32, spills=0, shared_memory=0)

    if device.target is None:
        plans = [backend.plan(problem, device, probe, options).tile for problem in (few, many)]
        assert plans[0] != plans[1]
    alike = [invariance.invariant(backend).plan(p, device, probe, options).tile for p in (few, many)]
    assert alike[0] == alike[1]
