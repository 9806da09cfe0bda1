"""The cases of norms: correct implementations pass, and each of the faults that other libraries had is found."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance_helpers import INTERPRETER, Function, failures, is_found
from tridal.testing import Case, cases

NAMES = ["rms_norm", "layer_norm"]
Tensor = torch.Tensor


class Norm(torch.autograd.Function):
    """Both norms in float32 with one rounding. The result or the gradients may have a fault."""

    @staticmethod
    def forward(
        ctx: Any, t: Tensor, weight: Tensor, bias: Tensor, dims: int, centre: bool, eps: float, fault: str
    ) -> Any:
        """Returns the norm of t, and a copy of t, whose gradient is added before the rounding."""
        wide = torch.promote_types(t.dtype, torch.float32)
        x = t.to(wide).flatten(-dims)
        mean = x.mean(-1, keepdim=True) if centre else torch.zeros(())
        variance = (x - mean).square().mean(-1, keepdim=True)
        if fault == "squares minus square of the mean":
            variance = x.square().mean(-1, keepdim=True) - mean.square()
        if fault == "bfloat16 statistics":
            variance = (x - mean).bfloat16().square().mean(-1, keepdim=True).to(wide)
        if fault == "wrong eps":
            variance = variance + 1e-5
        inverse = (variance + (0.0 if fault == "eps is dropped" else eps)).rsqrt()
        n, w = (x - mean) * inverse, weight.flatten().to(wide)
        if fault == "next weight":
            w = w.roll(1)
        if fault == "weight is dropped":
            w = torch.ones_like(w)
        ctx.save_for_backward(n, inverse, w)
        ctx.given = t, weight, bias, centre, fault
        ctx.set_materialize_grads(False)
        y = n * w + bias.flatten().to(wide)
        return (y * 0 if fault == "zeros" else y).to(t.dtype).reshape(t.shape), t.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor, copied: Tensor | None) -> tuple[Tensor | None, ...]:
        (n, inverse, w), (t, weight, bias, centre, fault) = ctx.saved_tensors, ctx.given
        dy = grad.to(n.dtype).reshape(n.shape)
        dn = dy * w
        mean = dn.mean(-1, keepdim=True) if centre and fault != "no mean of the gradient" else 0.0
        dx = (dn - mean - n * (dn * n).mean(-1, keepdim=True)) * inverse
        dx = dx.reshape(t.shape)
        if copied is not None and fault != "gradient of the sum is dropped":
            dx = (dx.to(t.dtype) if fault == "two roundings of the gradient" else dx) + copied
        terms = [term.flatten(0, -2) if term.dim() > 1 else term[None] for term in (dy * n, dy)]
        if fault == "drops the last row":
            terms = [term[:-1] for term in terms]
        if fault == "bfloat16 sums over rows":
            terms = [term.bfloat16().cumsum(0)[-1:].to(n.dtype) for term in terms]
        dw, db = (term.sum(0) for term in terms)
        if fault == "zeros":
            dx, dw, db = dx * 0, dw * 0, db * 0
        return (
            dx.to(t.dtype), dw.to(weight.dtype).reshape(weight.shape),
            db.to(bias.dtype).reshape(bias.shape), None, None, None, None,
        )  # fmt: skip


def norms(name: str, fault: str = "") -> Function:
    def norm(
        x: Tensor, *, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float,
        residual: Tensor | None = None,
    ) -> Any:  # fmt: skip
        total = normalised = x if residual is None else x + residual
        if fault == "sum not rounded" and residual is not None:
            normalised = x.float() + residual.float()
        if fault == "residual is dropped":
            normalised = x
        weight = torch.ones(normalized_shape, dtype=total.dtype) if weight is None else weight
        bias = torch.zeros(normalized_shape, dtype=total.dtype) if bias is None else bias
        found: Any = Norm.apply(normalised, weight, bias, len(normalized_shape), name == "layer_norm", eps, fault)
        y, copied = (tensor.to(total.dtype) for tensor in found)
        return y if residual is None else (y, total if fault == "residual is dropped" else copied)

    return norm


def small(name: str) -> list[Case]:
    found: list[Any] = [case for case in cases(INTERPRETER, [name]) if case.plan == "planned"]
    found = [case for case in found if math.prod(case.shape) < 20_000 and case.direction != "double"]
    return [case for case in found if {"weight_offset", "casting"}.isdisjoint(dict(case.numbers))]


@pytest.mark.parametrize("name", NAMES)
def test_correct_norms_pass(name: str) -> None:
    assert failures(norms(name), small(name)) == []


def of(case: Case, name: str) -> str | None:
    """The dtype of a tensor of a case, or None if it is absent."""
    return None if name in case.absent else dict(case.dtypes).get(name, case.dtype)


def several_elements(case: Case) -> bool:
    return case.values == "normal" and math.prod(case.shape) > 20


FAULTS: list[tuple[str, Callable[[Case], bool]]] = [
    ("zeros", lambda case: case.shape == (33, 257)),
    ("weight is dropped", lambda case: of(case, "weight") is not None and several_elements(case)),
    ("residual is dropped", lambda case: of(case, "residual") is not None and several_elements(case)),
    ("gradient of the sum is dropped", lambda case: case.direction == "backward" and case.shape == (33, 257)),
    ("next weight", lambda case: of(case, "weight") is not None and several_elements(case)),
    ("wrong eps", lambda case: case.values == "small"),
    ("eps is dropped", lambda case: case.shape == (9, 16)),
    ("bfloat16 statistics", lambda case: case.dtype == "float32" and case.shape == (33, 257)),
    ("squares minus square of the mean", lambda case: case.values == "shifted" and case.dtype == "float32"),
    ("drops the last row", lambda case: case.direction == "backward" and case.shape == (33, 257)),
    ("bfloat16 sums over rows", lambda case: case.direction == "backward" and case.shape in ((33, 257), (37, 53))),
    ("no mean of the gradient", lambda case: case.direction == "backward" and case.shape == (33, 257)),
    ("two roundings of the gradient", lambda case: case.direction == "backward" and of(case, "residual") == "bfloat16"),
    ("sum not rounded", lambda case: case.dtype == "float16" and of(case, "residual") == "float16"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("fault", "finds"), FAULTS, ids=[fault for fault, _ in FAULTS])
def test_faults_are_found(name: str, fault: str, finds: Callable[[Case], bool]) -> None:
    if name == "rms_norm" and fault in ("squares minus square of the mean", "no mean of the gradient"):
        pytest.skip("only layer_norm has a mean")
    chosen = [case for case in small(name) if finds(case)]
    assert is_found(norms(name, fault), chosen)  # they pass without the fault: see the test before
