"""The cases of linear_cross_entropy in the conformance suite, and their comparison with torch's ops in float64.

With the unit roundoffs u of the logits' dtype and a of the statistics, e is the largest error of a row's logits: u of
the logit, and a of each product in its sum. Then, with 32 a for a term of a chain of operations:

    loss     2 e times the weight of the row's targets, the same of z_loss, and a for each class
    dlogits  a relative error of 2 e for the probability, one rounding, and a for each class
    dx, dW   the errors of dlogits times the other factor, and a rounding of each product and of the result
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch

from tridal.devices.types import Backend
from tridal.library.losses import maths
from tridal.library.losses.cases import row_targets
from tridal.library.losses.cross_entropy import CROSS_ENTROPY
from tridal.ops.op import Op
from tridal.ops.row_maths import compute, compute_gradient
from tridal.testing.cases import DIRECTIONS, FusedCase
from tridal.testing.checking import difference
from tridal.testing.implementation import Implementation
from tridal.testing.inputs import make_values
from tridal.testing.tolerance import TINY, UNIT

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class LinearLossCase(FusedCase):
    """One call of linear_cross_entropy with logits of `shape`, without or with the gradients of all its tensors."""

    features: int = 24
    """Number of elements of a row of the input."""
    bias: bool = False
    weight: bool = False
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    softcap: float | None = None
    reduction: str = "mean"
    chunk_size: int | None = None

    def compare(self, implementation: Implementation) -> tuple[float, float, str | None]:
        """Returns the error, its bound and the message of a `Result`."""
        return _compare(self, implementation)


def cases(op: Op, backend: Backend) -> Iterator[LinearLossCase]:
    """Yields the cases of linear_cross_entropy whose dtypes the backend computes."""
    for direction in DIRECTIONS:
        make = partial(LinearLossCase, op.name, direction)
        yield from (case for case in _cases(make) if case.dtype in backend.dtypes)


def _cases(make: Any) -> Iterator[LinearLossCase]:
    yield from (make(shape) for shape in ((1, 7), (33, 257), (300, 53), (6, 5000)))
    for dtype, reduction in product(("float16", "bfloat16", "float32", "float64"), ("none", "mean", "sum")):
        yield make((37, 53), dtype=dtype, reduction=reduction, bias=True, chunk_size=16)
    for smoothing, z_loss, cap in product((0.0, 0.2), (0.0, 0.1), (None, 5.0)):
        yield make((37, 53), weight=True, label_smoothing=smoothing, z_loss=z_loss, softcap=cap, chunk_size=10)


def _compare(case: LinearLossCase, implementation: Implementation) -> tuple[float, float, str | None]:
    device, (rows, classes), backward = implementation.device, case.shape, case.direction == "backward"
    dtype = getattr(torch, case.dtype)
    shapes = [(rows, case.features), (classes, case.features), *[(classes,)] * case.bias]
    values = [make_values("normal", shape, 0, seed=index + 1) * 0.5 for index, shape in enumerate(shapes)]
    tensors = [value.to(device, dtype).requires_grad_(backward) for value in values]
    target = torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(3))
    target[2::5] = -100
    weight = torch.rand(classes, generator=torch.Generator().manual_seed(4)).to(dtype) if case.weight else None
    result: Any = implementation.function(case.op)(
        tensors[0], tensors[1], target.to(device), linear_bias=tensors[2] if case.bias else None,
        weight=None if weight is None else weight.to(device), reduction=case.reduction, z_loss=case.z_loss,
        label_smoothing=case.label_smoothing, softcap=case.softcap, chunk_size=case.chunk_size,
    )  # fmt: skip
    exact = _Exact(case, [tensor.detach().cpu().double() for tensor in tensors], target, weight)
    found, checked = [result], exact.loss()
    if backward:
        dloss = (
            make_values("normal", tuple(result.shape), 0, seed=5)
            if result.dim()
            else torch.ones((), dtype=torch.float64)
        )
        found += torch.autograd.grad(result, tensors, dloss.to(result))
        checked = [*checked, *exact.gradients(dloss.to(result.dtype).double())]
    worst: tuple[float, float, str | None] = (0.0, 0.0, None)
    for tensor, (wanted, error) in zip(found, checked, strict=True):
        unit = UNIT[case.dtype] * (2 if implementation.interpreted and case.dtype == "bfloat16" else 1)  # it truncates
        bound = error + 2 * unit * (wanted.abs() + error) + TINY[case.dtype]
        size, limit, message = difference(tensor.detach().cpu().double(), wanted, bound)
        if message is not None:
            return size, limit, f"tensor of shape {tuple(tensor.shape)}: {message}"
        worst = max(worst, (size, limit, None), key=lambda part: part[0] / part[1] if part[1] else 0.0)
    return worst


class _Exact:
    """The results of a call in float64, and the bounds of their errors before they are stored."""

    def __init__(self, case: LinearLossCase, tensors: list[Tensor], target: Tensor, weight: Tensor | None) -> None:
        self.case, self.x, self.matrix, self.target = case, tensors[0], tensors[1], target
        self.weight = None if weight is None else weight.double()
        self.unit, self.a = UNIT[case.dtype], UNIT["float64" if case.dtype == "float64" else "float32"]
        self.logits = self.x @ self.matrix.t() + (tensors[2] if case.bias else 0.0)
        products = self.x.abs() @ self.matrix.abs().t()
        errors = self.unit * self.logits.abs() + self.a * (case.features + 4) * products
        self.error = 2 * errors.amax(1)
        self.numbers: tuple[Any, ...] = (-100, case.label_smoothing, case.z_loss, case.softcap)
        given = (self.logits, target, self.weight, maths.REDUCTIONS[case.reduction], *self.numbers, torch.float64)
        results: Any = compute(CROSS_ENTROPY, *given)
        self.result, self.lse, self.denominator = results
        y = self.logits if case.softcap is None else case.softcap * torch.tanh(self.logits / case.softcap)
        self.p = (y - self.lse.unsqueeze(1)).exp()
        self.wanted, self.scale = row_targets(y, target, self.weight, case.label_smoothing)
        self.total = self.wanted.abs().sum(1) + 2 * case.z_loss * self.scale * self.lse.abs()
        self.roundings = 32 + case.shape[1]

    def loss(self) -> list[tuple[Tensor, Tensor]]:
        """Returns the exact loss, and the bound of its error."""
        size = self.lse.abs() + self.logits.abs().amax(1) + self.case.z_loss * self.lse.square()
        error = self.total * self.error + self.a * self.roundings * (self.wanted.abs().sum(1) + self.scale) * size
        if self.case.reduction == "none":
            return [(self.result, error)]
        error = error.sum() + self.a * self.target.numel() * (error.sum() + self.result.abs())
        return [(self.result, error if self.denominator is None else error / self.denominator)]

    def gradients(self, dloss: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Returns the exact gradients of input, weight and bias, and the bounds of their errors."""
        reduction = maths.REDUCTIONS[self.case.reduction]
        numbers = [self.denominator, reduction, *self.numbers, [True, False]]
        given: list[Any] = [dloss, None, self.logits, self.target, self.weight, self.lse, *numbers]
        dlogits: Any = compute_gradient(CROSS_ENTROPY, *given)[0]
        rows = maths.row_gradient(dloss, self.lse.numel(), self.denominator, reduction)
        rows = rows.abs().expand(self.lse.shape).unsqueeze(1)
        terms = rows * (self.p * self.total.unsqueeze(1) + self.wanted.abs())
        slope = 1.0 if self.case.softcap is None else 1 + 2 / self.case.softcap
        z = 2 * self.case.z_loss * (self.scale * self.error).unsqueeze(1) * rows * self.p
        relative = 2 * slope * self.error.unsqueeze(1) + self.a * self.roundings
        error = terms * relative + z + 2 * self.unit * dlogits.abs() + TINY[self.case.dtype]
        both = [(self.matrix, dlogits, error), (self.x, dlogits.t(), error.t())]
        results = [
            (d @ other, e @ other.abs() + self.a * (d.shape[1] + 4) * (d.abs() @ other.abs())) for other, d, e in both
        ]
        if self.case.bias:
            results.append((dlogits.sum(0), error.sum(0) + self.a * (len(dlogits) + 4) * dlogits.abs().sum(0)))
        return results
