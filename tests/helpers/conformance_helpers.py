"""Helpers for tests of the conformance suite: its cases, and implementations of softmax on the CPU with faults."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tridal.devices import registry
from tridal.testing import Case, Implementation, cases, check

CPU = torch.device("cpu")
INTERPRETER = next(backend for backend in registry.loaded() if backend.interpreted)
MAX_ELEMENTS = 100_000

Function = Callable[..., torch.Tensor]


@contextmanager
def registered(backend: Any) -> Iterator[Any]:
    """Registers a backend in code until the context ends."""
    registry.register(backend)
    try:
        yield backend
    finally:
        registry.unregister(backend.name)


def small_cases(op: str) -> list[Case]:
    """Returns the cases of an op that do not depend on a backend's plan, without large and modified inputs."""
    found = [case for case in cases(INTERPRETER, [op]) if case.plan == "planned" and not case.modified]
    return [case for case in found if math.prod(case.shape) < MAX_ELEMENTS]


def on_cpu(function: Function) -> Implementation:
    """Returns an implementation on the CPU in which every op has this function."""
    return Implementation(CPU, lambda op: function)


def failures(function: Function, cases: Iterable[Case]) -> list[str]:
    """Returns the names and messages of the cases that fail. Asserts that there is at least one case."""
    results = [check(case, on_cpu(function)) for case in cases]
    assert results
    return [f"{result.name}: {result.message}" for result in results if not result.passed]


def is_found(function: Function, cases: Iterable[Case]) -> bool:
    """Returns whether one of the cases fails. The cases after it do not run."""
    return not all(check(case, on_cpu(function)).passed for case in cases)


class Rounded(torch.autograd.Function):
    """softmax or log_softmax, computed in float32 or float64 and rounded once. The gradient may have a fault.

    torch's CPU kernels sum 16-bit values in their own dtype, so they cannot replace this class.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, op: str, fault: str | None) -> torch.Tensor:
        y = getattr(torch, op)(x.to(torch.promote_types(x.dtype, torch.float32)), dim).to(x.dtype)
        ctx.save_for_backward(y)
        ctx.arguments = dim, op, fault
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (y,), (dim, op, fault) = ctx.saved_tensors, ctx.arguments
        dtype, wide = y.dtype, torch.promote_types(y.dtype, torch.float32)
        if fault == "zeros":
            return torch.zeros_like(y), None, None, None
        if fault == "ignores strides" and 0 in dy.stride():
            dy = torch.zeros_like(dy).contiguous()
        y, dy = y.to(wide), dy.to(wide)
        if op == "log_softmax":
            return (dy - y.exp() * dy.sum(dim, keepdim=True)).to(dtype), None, None, None
        product = y * dy
        row_sum = product.sum(dim, keepdim=True)
        if fault == "no sum":
            row_sum = row_sum * 0
        elif fault == "sums in float16":
            row_sum = product.half().sum(dim, keepdim=True).to(wide)
        elif fault == "sums in the dtype of the input":
            row_sum = product.to(dtype).cumsum(dim).narrow(dim, -1, 1).to(wide)
        elif fault == "omits the last element":
            row_sum = row_sum - product.narrow(dim, -1, 1)
        elif fault == "reads beyond the row":
            row_sum = row_sum + product.narrow(dim, 0, 1).roll(-1)
        return (y * (dy - row_sum)).to(dtype), None, None, None


def rounded(op: str, fault: str | None = None) -> Function:
    """Returns softmax or log_softmax without a fault, or with this fault in its gradient."""

    def function(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return Rounded.apply(x.to(dtype or x.dtype), dim, op, fault)

    return function
