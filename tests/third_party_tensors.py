"""The ops of tests/tensor_op_package: their maths in torch's ops, and tensors of a call. The package is on the path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

PACKAGE = Path(__file__).with_name("tensor_op_package")
if str(PACKAGE) not in sys.path:
    sys.path.append(str(PACKAGE))

from tridal_skipnorm import LOGSUMEXP, SKIP_NORM, logsumexp, skip_norm  # noqa: E402

Tensor = torch.Tensor


def expected_skip_norm(
    input: Tensor, weight: Tensor, skip: Tensor, residual: Tensor | None = None, dim: int = -1, eps: float = 1e-6
) -> Any:
    """Skip norm in torch's ops."""
    total = input if residual is None else input + residual
    wide = torch.promote_types(total.dtype, torch.float32)
    x = total.to(wide).movedim(dim, -1)
    y = x * (torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight + skip)
    y = y.movedim(-1, dim).to(total.dtype)
    return y if residual is None else (y, total)


def expected_logsumexp(input: Tensor, dim: int = -1) -> Tensor:
    """Logsumexp of torch, in the dtype of sums."""
    return torch.logsumexp(input.to(torch.promote_types(input.dtype, torch.float32)), dim)


class Case(NamedTuple):
    """An op of the package: its function, the same in torch's ops, and the number of its tensors per column."""

    function: Callable[..., Any]
    expected: Callable[..., Any]
    columns: int
    residual: bool

    def tensors(
        self, shape: Sequence[int], dim: int = -1, dtype: torch.dtype = torch.float64, gradient: bool = True
    ) -> list[Tensor]:
        """Random tensors of a call, in the order of the function's arguments."""
        shapes = [tuple(shape), *[(shape[dim],)] * self.columns, *[tuple(shape)] * self.residual]
        made = [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]
        return [tensor.requires_grad_(gradient) for tensor in made]


CASES = {
    "skip_norm": Case(skip_norm, expected_skip_norm, 2, False),
    "skip_norm with residual": Case(skip_norm, expected_skip_norm, 2, True),
    "logsumexp": Case(logsumexp, expected_logsumexp, 0, False),
}
OPS = (SKIP_NORM, LOGSUMEXP)


def loss(results: Any) -> Tensor:
    """A number that depends on all elements of all results, with a gradient that is not constant."""
    results = (results,) if isinstance(results, Tensor) else results
    return sum(((1 + i) * r.double()).sin().sum() for i, r in enumerate(results))  # type: ignore[return-value]


def gradients(function: Callable[..., Any], tensors: Sequence[Tensor], *arguments: Any, **options: Any) -> Any:
    """The gradients of `loss` with respect to all tensors."""
    return torch.autograd.grad(loss(function(*tensors, *arguments, **options)), tensors)
