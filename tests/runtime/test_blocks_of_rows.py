"""Numbers per column and block of rows: which programs compute a block, and the sums over its rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tridal
from call_helpers import written
from tridal.devices.types import KernelConfig, LaunchPlan
from tridal.errors import PlanError
from tridal.ops import planning
from tridal.runtime.row_layout import row_layout
from tridal.runtime.specialization import KernelCall

BACKWARD = "modulated_rms_norm_backward"
CONFIG = KernelConfig("whole_row", 4, 1024)


def gradients(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaves = [tensor.detach().requires_grad_() for tensor in (x, scale, shift)]
    y = tridal.modulated_rms_norm(leaves[0], leaves[1], x.shape[-1:], shift=leaves[2])
    return torch.autograd.grad(y, leaves, y.detach().cos())


@pytest.mark.parametrize(("programs", "launched"), [(1, 3), (3, 3), (5, 3), (50, 48), (10_000, 3 * 18)])
def test_each_block_has_as_many_programs(programs: int, launched: int) -> None:
    call = planning.matrix_call(3 * 70, 1000, op=BACKWARD, blocks=3)  # a block has 18 tiles, the last one is not full
    assert call.programs(LaunchPlan(CONFIG, programs, "")) == launched


def test_programs_of_a_row_stay_together() -> None:
    plan = LaunchPlan(KernelConfig("cooperative", 1, 256, programs_per_row=4), 100, "")
    assert [plan.programs_for(tiles, blocks) for tiles, blocks in ((60, 1), (60, 3), (60, 30))] == [100, 96, 120]


def test_a_program_adds_the_rows_of_one_block_to_its_sums() -> None:
    text = written(planning.matrix_call(256, 1000, op=BACKWARD, blocks=2), CONFIG).text
    assert "for tile in tl.range(first_tile + group % groups, tiles, groups, num_stages=1):" in text
    assert text.index("scaling_ptr + block * block_stride + flat") < text.index("for tile")  # it is loaded once
    assert (
        "tl.where(in_bounds, rms_scale_gradient, 0.0)" in text
    )  # a weight may be infinite, and the last tile not full
    assert "block_stride" not in written(planning.matrix_call(256, 1000, op=BACKWARD), CONFIG).text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"op": "softmax", "blocks": 2}, "the kernel 'softmax' has no tensors with a number per column and block"),
        ({"op": BACKWARD, "blocks": 3}, "blocks must be a number that divides the rows"),
        ({"op": BACKWARD, "blocks": 2, "dim": 0}, "of dim -1, got 2"),
        ({"op": BACKWARD, "blocks": True}, "got True"),
    ],
)
def test_wrong_blocks_of_a_plan(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        planning.matrix_call(256, 1000, **arguments)


def test_strided_rows_and_blocks_are_read_in_place_and_others_copied(
    device: torch.device, planned: list[KernelCall]
) -> None:
    modulation = torch.randn(3, 1, 6 * 32, device=device)
    scale, shift = modulation.chunk(6, -1)[1:3]
    x = torch.randn(3, 2 * 7, 32, device=device)[:, ::2]
    expected = [gradients(x.double(), scale.double(), s.double()) for s in (shift, shift.clone())]
    for other, stride in ((shift, 6 * 32), (shift.clone(), 32)):
        planned.clear()
        found = gradients(x, scale, other)
        assert_close(tuple(t.double() for t in found), expected[0], rtol=1e-4, atol=1e-4)
        forward, backward = (call for call in planned if call.kernel.per_block)
        assert forward.block_stride == stride
        assert forward.layout.outer == backward.layout.outer == 3
        assert backward.problem.column_writes == ("float32",) * 2


def test_rows_whose_blocks_have_several_strides_are_copied(device: torch.device) -> None:
    """The rows of two batches are no neighbors, but one scale is that of both."""
    x = torch.randn(2, 5, 3, 16, device=device)[:, :4].transpose(1, 2)
    for shape in ((2, 1, 1, 16), (1, 1, 1, 16), (2, 3, 1, 16)):
        scale, shift = torch.randn(2, *shape, device=device)
        found = gradients(x, scale, shift)
        leaves = [tensor.double().requires_grad_() for tensor in (x, scale, shift)]
        y = torch.nn.functional.rms_norm(leaves[0], (16,), eps=torch.finfo(torch.float32).eps) * (1 + leaves[1])
        y = y + leaves[2]
        assert_close(
            tuple(t.double() for t in found), torch.autograd.grad(y, leaves, y.detach().cos()), rtol=1e-4, atol=1e-4
        )


def test_batch_invariant_sums_of_a_block_are_the_same_in_every_batch(backend: Any) -> None:
    with tridal.use(device=backend.name, batch_invariant=True):
        device = tridal.device()
        x, scale, shift = (torch.randn(5, tokens, 48, device=device) for tokens in (300, 1, 1))
        whole = gradients(x, scale, shift)
        for part in (slice(0, 1), slice(2, 5), slice(0, 5)):
            for found, expected in zip(gradients(x[part], scale[part], shift[part]), whole, strict=True):
                assert torch.equal(found, expected[part])


def test_batch_invariant_programs_of_a_block_do_not_depend_on_the_blocks() -> None:
    plan = LaunchPlan(CONFIG, 12, "")
    calls = (planning.matrix_call(blocks * 70, 1000, op=BACKWARD, blocks=blocks) for blocks in (1, 5))
    assert [replace(call, invariant=True).programs(plan) for call in calls] == [12, 60]


def test_a_layout_keeps_blocks_apart() -> None:
    shape, strides = (2, 3, 5, 8), (120, 40, 8, 1)
    found = [row_layout(shape, strides, 3, 0, separate=separate) for separate in (None, 0, 1, 2)]
    assert [(layout.outer, layout.inner) for layout in found if layout is not None] == [
        (1, 30),
        (1, 30),
        (2, 15),
        (6, 5),
    ]


@pytest.mark.parametrize("arch", ["ascend910b", "interpreter"])
def test_a_fixed_number_of_programs_is_rounded_to_the_blocks(arch: str) -> None:
    for blocks in (1, 3, 500):
        plan = tridal.plan(3000, 1152, op=BACKWARD, dtype="bf16", blocks=blocks, arch=arch)
        assert plan.launched_programs % blocks == 0
        assert plan.launched_programs == max(1, (plan.programs or 0) // blocks) * blocks
