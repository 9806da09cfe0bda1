"""The cases of cross_entropy in the conformance suite, and their comparison with torch's ops in float64.

With the unit roundoff a of the statistics, the capped logit y, and the log-sum-exp L of a row:

    y        an error c: a |x|, and a few a of the cap
    L        an error l: c, a |L|, and the relative error of the sum of exponentials
    loss     the errors of L - y for the target or the mixture of targets, and a few a of each term
    p        exp(y - L) has the relative error l + c + a |y - L|
    dx       the errors of p times the weight of the row's targets, and a few a of each term

Each result is rounded once more, to its dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch

from tridal.devices.types import Backend
from tridal.library.losses import maths
from tridal.library.losses.cross_entropy import CROSS_ENTROPY
from tridal.ops.op import Op
from tridal.ops.row_maths import compute, compute_gradient
from tridal.ops.row_reduce import RowReduce
from tridal.testing.cases import DIRECTIONS, FusedCase, Values
from tridal.testing.checking import difference
from tridal.testing.implementation import Implementation
from tridal.testing.inputs import make_values, with_layout
from tridal.testing.plan_overrides import overrides
from tridal.testing.tolerance import TINY, UNIT, Arithmetic

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class LossCase(FusedCase):
    """One call of cross_entropy, forward or with the gradient of the logits."""

    probabilities: bool = False
    """Whether targets are probabilities. If not, they are indices, some of them ignored."""
    weight: bool = False
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    softcap: float | None = None
    reduction: str = "none"
    lse: bool = False
    """Whether the log-sum-exp is a result, too."""

    def compare(self, implementation: Implementation) -> tuple[float, float, str | None]:
        """Returns the error, its bound and the message of a `Result`."""
        return _compare(self, implementation)


_SHAPES = ((7,), (5, 1), (33, 257), (17, 1024), (6, 1001), (3, 5000), (3000, 3), (2, 50_257), (2, 13, 4, 5), (0, 5))
_PLAN_SHAPES = ((37, 53), (300, 781), (3, 33, 300))
_VALUES: tuple[Values, ...] = ("constant", "dominant", "some -inf", "row of -inf", "some +inf", "some nan")


def cases(op: Op, backend: Backend) -> Iterator[FusedCase]:
    """Yields the cases of cross_entropy whose dtypes the backend computes."""
    for direction in DIRECTIONS:
        make = partial(LossCase, op.name, direction)
        yield from (case for case in _cases(make, backend) if case.dtype in backend.dtypes)


def _cases(make: Any, backend: Backend) -> Iterator[LossCase]:
    yield from (make(shape, probabilities=p) for shape, p in product(_SHAPES, (False, True)))
    for dtype, probabilities in product(("float16", "bfloat16", "float64"), (False, True)):
        yield make((37, 53), dtype=dtype, probabilities=probabilities, label_smoothing=0.1, reduction="mean")
    for values, probabilities in product(_VALUES, (False, True)):
        yield make((37, 53), values=values, probabilities=probabilities)
    for layout in ("transposed", "expanded", "sliced", "stepped", "permuted"):
        yield make((6, 10, 9), layout=layout)
    for weight, smoothing, z_loss, cap in product((False, True), (0.0, 0.2), (0.0, 0.1), (None, 5.0)):
        for probabilities, reduction in ((False, "mean"), (True, "sum")):
            yield make(
                (9, 77), weight=weight, label_smoothing=smoothing, z_loss=z_loss, softcap=cap,
                probabilities=probabilities, reduction=reduction, lse=not probabilities,
            )  # fmt: skip
    for plan, shape in product(overrides(backend), _PLAN_SHAPES):
        yield make(shape, plan=plan, lse=shape[0] == 37)
        yield make(shape, plan=plan, weight=True, label_smoothing=0.1, probabilities=shape[0] == 37)


def _compare(case: LossCase, implementation: Implementation) -> tuple[float, float, str | None]:
    device, shape, dim = implementation.device, case.shape, min(len(case.shape) - 1, 1)
    x = with_layout(make_values(case.values, shape, dim), case.layout, case.dtype, device)
    x = x.requires_grad_(case.direction == "backward")
    generator = torch.Generator().manual_seed(3)
    if case.probabilities:
        target = make_values("normal", shape, dim, seed=2).softmax(dim).to(x.dtype)
    else:
        target = torch.randint(shape[dim], (*shape[:dim], *shape[dim + 1 :]), generator=generator)
        target.view(-1)[2::5] = -100
    weight = torch.rand(shape[dim], generator=generator, dtype=torch.float64).to(x.dtype) if case.weight else None
    options = (case.label_smoothing, case.z_loss, case.softcap)
    found: Any = implementation.function(case.op)(
        x, target.to(device), None if weight is None else weight.to(device), reduction=case.reduction, return_lse=True,
        **dict(zip(("label_smoothing", "z_loss", "softcap"), options, strict=True)),
    )  # fmt: skip
    results = list(found) if case.lse else [found[0]]
    exact = _Exact(case, implementation, x, target, weight)
    checked = {name: (t, *exact.forward(name)) for name, t in zip(("loss", "lse"), results, strict=False)}
    if case.direction == "backward":
        grads = [
            make_values("normal", tuple(t.shape), 0, seed=4).to(device, t.dtype) if t.dim() else torch.ones_like(t)
            for t in results
        ]
        (gradient,) = torch.autograd.grad(results, x, grads)
        checked = {"dx": (gradient, *exact.backward([grad.cpu().double() for grad in grads]))}
    worst: tuple[float, float, str | None] = (0.0, 0.0, None)
    for name, (result, wanted, error) in checked.items():
        if tuple(result.shape) != tuple(wanted.shape) or result.device.type != device.type:
            return math.nan, 0.0, f"{name} has the shape {tuple(result.shape)} on {result.device}"
        stored = str(result.dtype).removeprefix("torch.")
        unit = UNIT[stored] * (2 if implementation.interpreted and stored == "bfloat16" else 1)  # it truncates
        bound = error + unit * (wanted.abs() + error) + TINY[stored]
        size, limit, message = difference(result.detach().cpu().double(), wanted, bound)
        if message is not None:
            return size, limit, f"{name}: {message}"
        worst = max(worst, (size, limit, None), key=lambda part: part[0] / part[1] if part[1] else 0.0)
    return worst


def row_targets(y: Tensor, target: Tensor, weight: Tensor | None, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Returns the weighted target of each class, and the weight of each row in the mean."""
    dim = maths.classes_dim(y)
    target = target if target.is_floating_point() else target.unsqueeze(dim)
    weight = None if weight is None else weight.view(-1, *[1] * (y.dim() - 1 - dim))
    wanted, scale = maths.targets(y, target, weight, RowReduce(y, dim), -100, label_smoothing)
    return wanted, scale.squeeze(dim)


class _Exact:
    """The results of a call in float64, and the bounds of their errors before they are stored."""

    def __init__(
        self, case: LossCase, implementation: Implementation, x: Tensor, target: Tensor, weight: Tensor | None
    ) -> None:
        self.case, self.dim = case, maths.classes_dim(x)
        self.x = x.detach().cpu().double()
        self.target = target.double() if case.probabilities else target
        self.weight = None if weight is None else weight.double()
        self.options = (-100, case.label_smoothing, case.z_loss, case.softcap)
        self.reduction = maths.REDUCTIONS[case.reduction]
        columns = x.shape[self.dim]
        wide = "float64" if x.dtype is torch.float64 else "float32"
        in_order = case.layout == "contiguous" and len(case.shape) < 3  # elements of rows are neighbours in memory
        arithmetic = Arithmetic.of((wide,), wide, columns, implementation.interpreted, in_order)
        self.unit, self.roundings = arithmetic.accumulator, arithmetic.sum_roundings
        given = (self.x, self.target, self.weight, self.reduction, *self.options, torch.float64)
        results: Any = compute(CROSS_ENTROPY, *given)
        self.loss, self.lse, self.denominator = results
        self.y = self.x if case.softcap is None else case.softcap * torch.tanh(self.x / case.softcap)
        a = self.unit
        capped = torch.zeros(()) if case.softcap is None else a * (self.x.abs() + 16 * case.softcap)
        finite = self.y.masked_fill(~self.y.isfinite(), 0.0)
        self.capped = capped.amax(self.dim) if capped.dim() else capped
        spread = arithmetic.noise((finite.amax(self.dim) - finite.amin(self.dim)) / 4) if columns else torch.zeros(())
        self.lse_error = self.capped + 2 * a * (self.lse.abs() + finite.abs().amax(self.dim)) + spread
        self.wanted, self.scale = row_targets(self.y, self.target, self.weight, case.label_smoothing)

    def forward(self, name: str) -> tuple[Tensor, Tensor]:
        """Returns the exact value of the loss or the log-sum-exp, and the bound of its error."""
        if name == "lse":
            return self.lse, self.lse_error
        distance = (self.lse.unsqueeze(self.dim) - self.y).abs()
        terms = torch.where(self.wanted == 0, 0.0, self.wanted.abs() * distance).sum(self.dim)
        error = self.wanted.abs().sum(self.dim) * (self.lse_error + self.capped)
        error = error + self.unit * (self.roundings + 16) * terms
        z = abs(self.case.z_loss) * self.scale.abs()
        error = error + z * (2 * self.lse.abs() * self.lse_error + 8 * self.unit * self.lse.square())
        if self.reduction == maths.NONE:
            return self.loss, error
        rows = terms + z * self.lse.square()
        error = (error + self.unit * (self.target.numel() + 8) * rows).sum()
        if self.reduction == maths.MEAN:
            error = error / (self.target.numel() if self.denominator is None else self.denominator)
        return self.loss, error

    def backward(self, grads: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the exact gradient of the logits, and the bound of its error."""
        a, dim = self.unit, self.dim
        lse_grad = grads[1] if self.case.lse else None
        given = (grads[0], lse_grad, self.x, self.target, self.weight, self.lse, self.denominator, self.reduction)
        exact, _ = compute_gradient(CROSS_ENTROPY, *given, *self.options, [True, False])
        assert exact is not None
        rows = maths.row_gradient(grads[0], self.lse.numel(), self.denominator, self.reduction)
        rows = rows.abs().expand(self.lse.shape).unsqueeze(dim)
        lse, error, z = (t.unsqueeze(dim) for t in (self.lse, self.lse_error, 2 * self.case.z_loss * self.scale.abs()))
        p = (self.y - lse).exp()
        factor = rows * (self.wanted.abs().sum(dim, keepdim=True) + z * lse.abs())
        factor = factor if lse_grad is None else factor + lse_grad.abs().unsqueeze(dim)
        capped = self.capped.unsqueeze(dim) if self.capped.dim() else self.capped
        relative = error + capped + a * (4 * (lse - self.y).abs().nan_to_num(posinf=0) + self.roundings + 40)
        relative = relative + a * math.log2(self.target.numel() + 2)
        bound = (
            p * factor * relative + p * rows * z * error + (a * (64 + self.target.numel())) * rows * self.wanted.abs()
        )
        return exact, bound + 32 * a * exact.abs()
