"""The cases of losses: correct implementations pass, and faults are found."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from conformance_helpers import INTERPRETER, Function, failures, is_found
from tridal.library.losses.cross_entropy import CROSS_ENTROPY
from tridal.library.losses.maths import REDUCTIONS
from tridal.ops.row_maths import compute
from tridal.testing import Case, cases

NAMES = ["cross_entropy", "linear_cross_entropy"]
Tensor = torch.Tensor


class Changed(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a number and rounded to a dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
        ctx.given = factor, dtype
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        factor, dtype = ctx.given
        return (grad * factor).to(dtype).to(grad.dtype), None, None


def cross_entropy(fault: str = "") -> Function:
    """Returns cross_entropy in torch's ops, with a fault or none."""

    def function(
        input: Tensor, target: Tensor, *, weight: Tensor | None = None, reduction: str, ignore_index: int = -100,
        label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None, return_lse: bool = False,
    ) -> Any:  # fmt: skip
        dtype = torch.promote_types(input.dtype, torch.float32)
        x, cap = input.to(dtype), softcap
        if fault == "rounded gradient of the input":
            x = Changed.apply(x, 1.0, torch.bfloat16)
        if fault == "gradient of the input":
            x = Changed.apply(x, 1.0001, dtype)
        if fault == "rounded logits":
            x = x.half().to(dtype)
        if fault == "last row" and not target.is_floating_point() and target.numel() > 1:
            target = torch.cat([target[:-1], target[-1:] * 0 + ignore_index])
        if fault == "weight" and weight is not None:
            weight = weight.roll(1)
        label_smoothing = label_smoothing * (0.99 if fault == "label_smoothing" else 1.0)
        z_loss = z_loss * (0.99 if fault == "z_loss" else 1.0)
        cap = None if fault == "softcap" else cap
        numbers = (REDUCTIONS[reduction], ignore_index, label_smoothing, z_loss, cap, dtype)
        loss, lse, _ = compute(CROSS_ENTROPY, x, target, weight, *numbers)
        assert loss is not None
        assert lse is not None
        loss = loss * (1 + 1e-5) if fault == "loss" else loss
        lse = lse * (1 + 1e-5) if fault == "lse" else lse
        return (loss.to(input.dtype), lse) if return_lse else loss.to(input.dtype)

    return function


def linear_cross_entropy(fault: str = "") -> Function:
    """Returns linear_cross_entropy in torch's ops, with a fault or none."""

    def function(
        input: Tensor, matrix: Tensor, target: Tensor, *, linear_bias: Tensor | None = None, chunk_size: int,
        **options: Any,
    ) -> Any:  # fmt: skip
        if fault == "gradient of the matrix":
            matrix = Changed.apply(matrix, 1.001, matrix.dtype)
        if fault == "bias" and linear_bias is not None:
            linear_bias = linear_bias.roll(1)
        return cross_entropy(fault)(torch.nn.functional.linear(input, matrix, linear_bias), target, **options)

    return function


def small(name: str) -> list[Case]:
    found = [case for case in cases(INTERPRETER, [name]) if case.plan == "planned" and case.direction != "double"]
    finite = [case for case in found if not case.values.startswith(("some", "row"))]
    return [case for case in finite if math.prod(case.shape) < 20_000]


FUNCTIONS = {"cross_entropy": cross_entropy, "linear_cross_entropy": linear_cross_entropy}
FAULTS = (
    "loss", "last row", "weight", "label_smoothing", "z_loss", "softcap", "rounded logits",
    "rounded gradient of the input",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_correct_losses_pass(name: str) -> None:
    assert len(small(name)) >= 40
    assert failures(FUNCTIONS[name](), small(name)) == []


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        *((name, fault) for name in NAMES for fault in FAULTS), ("cross_entropy", "lse"),
        ("cross_entropy", "gradient of the input"), ("linear_cross_entropy", "gradient of the matrix"),
        ("linear_cross_entropy", "bias"),
    ],
)  # fmt: skip
def test_faults_are_found(name: str, fault: str) -> None:
    chosen = [case for case in small(name) if case.dtype == "float32"]
    assert is_found(FUNCTIONS[name](fault), chosen)
