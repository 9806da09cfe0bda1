"""Error bounds for the results of ops. Every bound follows from the rounding of dtypes; no bound is fitted.

u is the unit roundoff of a dtype: storing v has an error of at most u |v|, or of `tiny` if v is subnormal. In a row of
N elements with maximum m, let d = m - x >= 0, and let a be the unit roundoff of the dtype of the statistics. The errors
to first order:

    x - m          one rounding with an error of a d; exp makes it a relative error
    exp            a relative error of a few a, and of about a d again if it is computed as 2^(d log2 e)
    sum            log2 N roundings, if N positive terms are added as a tree. Each term has an error of 2 a d. Their
                   mean, weighted with the terms, is at most 2 a ln N, because the mean of d over a softmax is at most
                   ln N
    division, log  a few a

`Arithmetic.noise` is the sum of these. Each of its terms is about twice as large as necessary. The sum is a thousand
times smaller than the error of a sum in bfloat16. `tests/test_tolerance.py` shows which faults the bounds find.

An op can define its own bounds (`RowOp.bounds`). `DerivedBounds` are the bounds of all other ops. They measure how
sensitive a row is to rounding errors: they slightly change the inputs and the statistics of the op's reference, in
float64 and in float32. The largest change of the row's results determines the bound.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from tridal.ops.row_op import RowOp
from tridal.ops.row_reduce import RowReduce

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""Unit roundoff of each dtype, for rounding to nearest."""

TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
"""Error of storing a subnormal. All devices keep float16 subnormals. Some devices flush the others to zero."""

Tensor = torch.Tensor

_CHANGES = ((2.0**-20, torch.float64), (2.0**-23, torch.float32))  # (step, dtype) of a trial, see _bound
_TRIALS = 6


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The precision of a computation: of its statistics and of the dtypes that it writes."""

    unit: float
    """Unit roundoff of the written dtypes; the largest one if a gradient and its op's result differ in dtype."""
    tiny: float
    """Error of storing a subnormal in the written dtypes."""
    accumulator: float
    """Unit roundoff of the statistics. It is doubled for float64, because the exact values are in float64 too."""
    cols: int
    sum_roundings: float
    """Number of roundings of one term in a sum over a row."""

    @classmethod
    def of(cls, writes: tuple[str, ...], dtype: str, cols: int, interpreted: bool, last_dim: bool) -> Arithmetic:
        """Returns the precision of an op in `dtype` that writes these dtypes, with rows of `cols` elements.

        Triton's interpreter is less precise in two ways. It truncates float32 to bfloat16 instead of rounding. NumPy
        adds the elements one after the other, except along the last dim.
        """
        units = [UNIT[written] * (2 if interpreted and written == "bfloat16" else 1) for written in writes]
        return cls(
            unit=max(units),
            tiny=max(TINY[written] for written in writes),
            accumulator=2 * UNIT["float64"] if dtype == "float64" else UNIT["float32"],
            cols=cols,
            sum_roundings=float(cols) if interpreted and not last_dim else math.log2(max(cols, 1)),
        )

    def noise(self, distance: Tensor) -> Tensor:
        """Returns the relative error of exp(x - m) / sum, where `distance` is m - x. See the module docstring."""
        return self.accumulator * (4 * distance + self.sum_roundings + 3 * math.log2(max(self.cols, 1)) + 16)


@dataclass(frozen=True, slots=True)
class DerivedBounds:
    """Error bounds for any op. They measure how small changes of inputs and statistics affect the op's reference."""

    op: RowOp

    def forward(self, x: Tensor, y: Tensor, dim: int, arithmetic: Arithmetic, scaled: Tensor | None = None) -> Tensor:
        """Returns the bound of each element's error in Y = op(X). `scaled` is not used."""
        return _bound(self._compute, (x,), y, dim, arithmetic)

    def backward(
        self, saved: Tensor, dy: Tensor, dx: Tensor, dim: int, arithmetic: Arithmetic, scale: float = 1.0
    ) -> Tensor:
        """Returns the bound of each element's error in dX, for the saved tensor and dY."""
        values = self.op.backward_parameters(tuple(self.op.parameters.values()), scale)
        gradient = functools.partial(self.op.gradient, **self.op.keywords(self.op.backward, values))
        return _bound(lambda reduce, dy, saved: gradient(dy, saved, reduce), (dy, saved), dx, dim, arithmetic)

    def second_order(self, x: Tensor, dy: Tensor, exact: Tensor, dim: int, arithmetic: Arithmetic) -> Tensor:
        """Returns the bound of each element's error in the gradient of sum(dX^2), whose exact value is `exact`."""

        def compute(reduce: RowReduce, x: Tensor, dy: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            return second_gradient(x, self._compute(reduce, x), dy)

        return _bound(compute, (x, dy), exact, dim, arithmetic)

    def _compute(self, reduce: RowReduce, x: Tensor) -> Tensor:
        return self.op.reference(x, reduce, **self.op.parameters)


def bounds_of(op: RowOp) -> Any:
    """Returns the bounds of an op: its own bounds if it has any, else `DerivedBounds`."""
    return DerivedBounds(op) if op.bounds is None else op.bounds


def second_gradient(x: Tensor, y: Tensor, dy: Tensor) -> Tensor:
    """Returns the gradient of sum(dX^2), where dX is the gradient of sum(Y dY). The result of a linear op is zero."""
    (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
    if not dx.requires_grad:
        return torch.zeros_like(x)
    (ddx,) = torch.autograd.grad(dx.square().sum(), x, materialize_grads=True)
    return ddx


def _bound(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], exact: Tensor, dim: int, arithmetic: Arithmetic
) -> Tensor:
    """Returns the bound of each element's error in function(reduce, *inputs), whose exact value is `exact`.

    Each trial changes the inputs and the results of `reduce` by random relative amounts up to a step. Half of the
    trials run in float32. The bound uses the largest change of a row's results, divided by the step. Changes of the
    inputs alone would not show errors of intermediate results that cancel in exact arithmetic.
    """
    generator, largest = torch.Generator().manual_seed(0), torch.zeros_like(exact)
    for step, dtype in _CHANGES * _TRIALS:
        change = functools.partial(_change, step=step, generator=generator)
        changed = [change(x).to(dtype) for x in inputs]
        result = function(_ChangedReduce(exact, dim, change), *changed).double()
        largest = torch.maximum(largest, ((result - exact).abs() / step).nan_to_num(posinf=0.0))
    noise = arithmetic.noise(torch.zeros(()))
    sensitivity = 2 * RowReduce(largest, dim)(largest, "max")
    return arithmetic.unit * exact.abs() + noise * (exact.abs() + sensitivity) + arithmetic.tiny


class _ChangedReduce(RowReduce):
    """A `RowReduce` that applies `change` to its results."""

    def __init__(self, x: Tensor, dim: int, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__(x, dim)
        self._change = change

    def __call__(self, x: Tensor, how: Literal["max", "sum"]) -> Tensor:
        return self._change(super().__call__(x, how))


def _change(x: Tensor, step: float, generator: torch.Generator) -> Tensor:
    """Returns the tensor with each element changed by a random relative amount between -step and step."""
    return x * (1 + step * (2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1))
