"""The conformance suite of norms and losses: correct functions pass its cases, and a function with a fault fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance_helpers import INTERPRETER, Function, failures
from tridal.library.losses.cross_entropy import CROSS_ENTROPY
from tridal.library.losses.maths import REDUCTIONS
from tridal.ops.row_maths import compute
from tridal.testing import Case, cases

Tensor = torch.Tensor


class Changed(torch.autograd.Function):
    """The identity, whose gradient a function changes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.change(grad).to(grad.dtype), None


def without_last_row(grad: Tensor) -> Tensor:
    return grad * (torch.arange(len(grad)) < len(grad) - 1).unsqueeze(1)


def summed_in_bfloat16(grad: Tensor) -> Tensor:
    """Numbers whose sum over rows is the one that bfloat16 gives."""
    total = grad.bfloat16().cumsum(0)[-1:].to(grad.dtype)
    return torch.cat([torch.zeros_like(grad[:-1]), total])


def norm(name: str, fault: str = "") -> Function:
    """A norm that computes in float64 and rounds once, with a fault or none."""

    def function(
        x: Tensor, *, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float,
        residual: Tensor | None = None,
    ) -> Any:  # fmt: skip
        dtype = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
        exact = x.double() if residual is None else x.double() + residual.double()
        total = exact + (exact.to(dtype).double() - exact).detach()  # rounded, with the gradient of the exact sum
        added = {"sum not rounded": exact, "residual is dropped": x.double()}.get(fault, total)
        if fault == "two roundings of the gradient":
            added = Changed.apply(added, lambda grad: grad.to(dtype))
        rows = added.flatten(-len(normalized_shape))
        mean = rows.mean(-1, keepdim=True) if name == "layer_norm" else torch.zeros(())
        centered = rows - (mean.detach() if fault == "no mean of the gradient" else mean)
        variance = centered.square().mean(-1, keepdim=True)
        if fault == "squares minus square of the mean":
            variance = (rows.float().square().mean(-1, keepdim=True) - mean.float().square()).double()
        if fault == "bfloat16 statistics":
            variance = centered.bfloat16().square().mean(-1, keepdim=True).double()
        y = centered * (variance + {"wrong eps": eps + 1e-5, "eps is dropped": 0.0}.get(fault, eps)).rsqrt()
        if weight is not None and fault != "weight is dropped":
            factor = weight.double().flatten().roll(int(fault == "next weight")).expand(y.shape)
            changes = {"drops the last row": without_last_row, "bfloat16 sums over rows": summed_in_bfloat16}
            y = y * Changed.apply(factor, changes.get(fault, lambda grad: grad))
        y = y if bias is None else y + bias.double().flatten()
        y = (y * (fault != "zeros")).to(dtype).view(total.shape)
        copied = total.detach() + 0 * total if fault == "gradient of the sum is dropped" else total
        return y if residual is None else (y, copied.to(dtype))

    return function


def cross_entropy(name: str, fault: str = "") -> Function:
    """A loss in torch's ops, with a fault or none. That of a linear layer computes the logits first."""

    def function(
        input: Tensor, *tensors: Tensor, weight: Tensor | None = None, linear_bias: Tensor | None = None,
        reduction: str, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
        softcap: float | None = None, return_lse: bool = False, chunk_size: int = 0,
    ) -> Any:  # fmt: skip
        logits, target = input, tensors[-1]
        if name == "linear_cross_entropy":
            matrix = Changed.apply(tensors[0], lambda grad: grad * (1.001 if fault == "gradient of the matrix" else 1))
            bias = linear_bias.roll(1) if linear_bias is not None and fault == "bias" else linear_bias
            logits = torch.nn.functional.linear(input, matrix, bias)
        x = logits.to(torch.promote_types(logits.dtype, torch.float32))
        changes = {"rounded gradient of the input": Tensor.bfloat16, "gradient of the input": lambda g: g * 1.0001}
        x = Changed.apply(x, changes.get(fault, lambda grad: grad))
        x = x.half().to(x.dtype) if fault == "rounded logits" else x
        if fault == "last row" and not target.is_floating_point() and target.numel() > 1:
            target = torch.cat([target[:-1], target[-1:] * 0 + ignore_index])
        weight = weight.roll(1) if weight is not None and fault == "weight" else weight
        numbers = (
            REDUCTIONS[reduction], ignore_index, label_smoothing * (0.99 if fault == "label_smoothing" else 1),
            z_loss * (0.99 if fault == "z_loss" else 1), None if fault == "softcap" else softcap, x.dtype,
        )  # fmt: skip
        loss, lse, _ = compute(CROSS_ENTROPY, x, target, weight, *numbers)
        assert loss is not None
        assert lse is not None
        loss = (loss * (1 + 1e-5 * (fault == "loss"))).to(logits.dtype)
        return (loss, lse * (1 + 1e-5 * (fault == "lse"))) if return_lse else loss

    return function


NORMS, LOSSES = ("rms_norm", "layer_norm"), ("cross_entropy", "linear_cross_entropy")


def function_of(name: str, fault: str = "") -> Function:
    return norm(name, fault) if name in NORMS else cross_entropy(name, fault)


def small(name: str) -> list[Case]:
    """Cases that the functions above define, without large inputs."""
    found = [case for case in cases(INTERPRETER, [name]) if case.plan == "planned" and case.direction != "double"]
    finite = [case for case in found if math.prod(case.shape) < 20_000 and not case.values.startswith(("some", "row"))]
    return [case for case in finite if {"weight_offset", "casting"}.isdisjoint(dict(case.numbers))]


def dtype_of(case: Case, name: str) -> str | None:
    """The dtype of a tensor of a case, or None if it is absent."""
    return None if name in case.absent else dict(case.dtypes).get(name, case.dtype)


def is_backward(case: Case) -> bool:
    return case.direction == "backward" and case.dtype == "float32" and case.values == "normal"


def several_rows(case: Case) -> bool:
    return is_backward(case) and case.shape in ((33, 257), (37, 53)) and dtype_of(case, "weight") == "float32"


def with_residual(case: Case) -> bool:
    return is_backward(case) and math.prod(case.shape) > 20 and dtype_of(case, "residual") == "float32"


def uses(number: str) -> Callable[[Case], bool]:
    return lambda case: case.dtype == "float32" and dict(case.numbers).get(number) is not None


def is_forward(case: Case) -> bool:
    return case.direction == "forward" and case.dtype == "float32" and case.values == "normal" and len(case.shape) == 2


FAULTS: list[tuple[tuple[str, ...], str, Callable[[Case], bool]]] = [
    (NORMS, "zeros", is_forward),
    (NORMS, "weight is dropped", is_forward),
    (NORMS, "next weight", is_forward),
    (NORMS, "residual is dropped", with_residual),
    (NORMS, "gradient of the sum is dropped", with_residual),
    (NORMS, "wrong eps", lambda case: case.values == "small"),
    (NORMS, "eps is dropped", lambda case: case.shape == (9, 16)),
    (NORMS, "bfloat16 statistics", is_forward),
    (NORMS, "drops the last row", several_rows),
    (NORMS, "bfloat16 sums over rows", several_rows),
    (NORMS, "two roundings of the gradient",
     lambda case: case.direction == "backward" and dtype_of(case, "residual") == "bfloat16"),
    (NORMS, "sum not rounded", lambda case: case.dtype == dtype_of(case, "residual") == "float16"),
    (NORMS[1:], "squares minus square of the mean", lambda case: case.values == "shifted" and case.dtype == "float32"),
    (NORMS[1:], "no mean of the gradient", is_backward),
    (LOSSES, "loss", is_forward),
    (LOSSES, "last row", is_forward),
    (LOSSES, "weight", is_forward),
    (LOSSES, "label_smoothing", uses("label_smoothing")),
    (LOSSES, "z_loss", uses("z_loss")),
    (LOSSES, "softcap", uses("softcap")),
    (LOSSES, "rounded logits", is_forward),
    (LOSSES, "rounded gradient of the input", is_backward),
    (LOSSES[:1], "lse", uses("return_lse")),
    (LOSSES[:1], "gradient of the input", is_backward),
    (LOSSES[1:], "gradient of the matrix", is_backward),
    (LOSSES[1:], "bias", is_forward),
]  # fmt: skip


@pytest.mark.parametrize("name", [*NORMS, *LOSSES])
def test_correct_functions_pass(name: str) -> None:
    chosen = small(name)[::8]
    assert {"forward", "backward"} == {case.direction for case in chosen}
    assert failures(function_of(name), chosen) == []


@pytest.mark.parametrize(("names", "fault", "finds"), FAULTS, ids=[fault for _, fault, _ in FAULTS])
def test_faults_are_found(names: tuple[str, ...], fault: str, finds: Callable[[Case], bool]) -> None:
    for name in names:
        chosen = (case for case in small(name) if finds(case))
        found = next((case for case in chosen if failures(function_of(name, fault), [case])), None)
        assert found is not None, name
        assert failures(function_of(name), [found]) == []
