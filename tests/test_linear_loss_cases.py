"""The cases of linear_cross_entropy: a correct implementation passes, and faults are found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tridal.library.losses import maths
from tridal.library.losses.cross_entropy import CROSS_ENTROPY
from tridal.library.losses.linear_cases import LinearLossCase, cases
from tridal.library.losses.linear_cross_entropy import LINEAR_CROSS_ENTROPY
from tridal.ops.row_maths import compute
from tridal.testing import Implementation, check

BACKEND: Any = SimpleNamespace(dtypes=frozenset({"float16", "bfloat16", "float32", "float64"}))
CASES: list[LinearLossCase] = list(cases(LINEAR_CROSS_ENTROPY, BACKEND))


class Scaled(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a number and rounded to a dtype."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float, dtype: torch.dtype) -> torch.Tensor:
        ctx.given = factor, dtype
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        factor, dtype = ctx.given
        return (grad * factor).to(dtype).to(grad.dtype), None, None


def implementation(fault: str = "") -> Implementation:
    """An implementation in torch's ops that may have a fault."""

    def function(
        input: Any, matrix: Any, target: Any, *, linear_bias: Any, weight: Any, reduction: str, chunk_size: Any,
        **options: Any,
    ) -> torch.Tensor:  # fmt: skip
        if fault == "gradient of the weight":
            matrix = Scaled.apply(matrix, 1.001, matrix.dtype)
        if fault == "rounded gradient of the input":
            input = Scaled.apply(input, 1.0, torch.bfloat16)
        if fault == "last row":
            target = torch.cat([target[:-1], target.new_full((1,), -100)])
        if fault == "bias" and linear_bias is not None:
            linear_bias = linear_bias.roll(1)
        if fault == "weight" and weight is not None:
            weight = weight.roll(1)
        if fault in ("z_loss", "label_smoothing"):
            options[fault] *= 0.9
        logits = torch.nn.functional.linear(input, matrix, linear_bias)
        logits = logits.half().to(logits.dtype) if fault == "rounded logits" else logits
        numbers = (-100, options["label_smoothing"], options["z_loss"], options["softcap"])
        given = (logits, target, weight, maths.REDUCTIONS[reduction], *numbers, logits.dtype)
        loss: Any = compute(CROSS_ENTROPY, *given)[0]
        return loss  # type: ignore[no-any-return]

    return Implementation(torch.device("cpu"), lambda _: function, interpreted=False)


def test_a_correct_implementation_passes_all_cases() -> None:
    results = [check(case, implementation()) for case in CASES]
    assert [f"{result.name}: {result.message}" for result in results if not result.passed] == []
    assert len(results) >= 40


@pytest.mark.parametrize(
    "fault",
    [
        "gradient of the weight", "rounded gradient of the input", "last row", "bias", "weight", "z_loss",
        "label_smoothing", "rounded logits",
    ],
)  # fmt: skip
def test_a_fault_is_found(fault: str) -> None:
    tested = implementation(fault)
    assert any(not check(case, tested).passed for case in CASES)
