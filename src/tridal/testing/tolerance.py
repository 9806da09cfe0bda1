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
times smaller than the error of a sum in bfloat16. `tests/testing/test_tolerance.py` shows which faults the bounds find.

An op of one tensor can define its own bounds (`Op.bounds`). `derived_bounds` are the bounds of all other ops. They
simulate roundings: in a few trials, each operation of the op's math in float64 changes its result by a random relative
amount of at most one unit roundoff. The largest change of a row's results, times a factor, is the bound. A sum
of elements one after the other also loses small terms (`roundings.in_order`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tridal.ops.signature import Rows
from tridal.testing.exact import Named
from tridal.testing.roundings import STEP, Formulas, Roundings

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""Unit roundoff of each dtype, for rounding to nearest."""

TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
"""Error of storing a subnormal. All devices keep float16 subnormals. Some devices flush the others to zero."""

Tensor = torch.Tensor

_SAFETY = 8
"""The largest change in a few trials is multiplied by this."""
_ELEMENT = 4
_TRIALS, _FEW_TRIALS, _MANY_ELEMENTS, _MANY_COLS = 6, 2, 50_000, 100


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


def derived_bounds(
    rows: Rows, exact: Mapping[str, Tensor], roles: Mapping[str, Any], compute: Callable[[Roundings | None], Named],
    arithmetic: Mapping[str, Arithmetic], dtype: str, formulas: Formulas,
) -> Named:  # fmt: skip
    """Returns the bound of the error of each element, for any op.

    Args:
        rows: where the rows of tensors with a number per element are.
        exact: the exact value of each result or gradient.
        roles: whether each holds a number per element, row or column, or something else.
        compute: computes all of them, exactly or with simulated roundings.
        arithmetic: the precision of each. All have the same statistics.
        dtype: the dtype of matmuls.
        formulas: see `OpCases.formulas`.
    """
    if not exact:
        return {}
    origin = compute(None)  # not `exact`: a wrong gradient of the op would be taken for a large rounding error
    largest = {name: STEP * tensor.abs().nan_to_num(posinf=0.0) for name, tensor in exact.items()}  # the last rounding
    a = next(iter(arithmetic.values()))
    many = a.cols > _MANY_COLS and max(tensor.numel() for tensor in exact.values()) > _MANY_ELEMENTS

    computed = "float32" if a.accumulator == UNIT["float32"] else "float64"
    subnormal = TINY[computed], TINY[computed] / a.accumulator * STEP

    def stored_step(dtype: torch.dtype) -> float:  # an element that is stored differs by up to two units
        return 2 * UNIT[str(dtype).removeprefix("torch.")] / a.accumulator * STEP / _SAFETY

    for seed in range(_FEW_TRIALS if many else _TRIALS):
        row = rows.first, a.cols
        roundings = Roundings(seed, row, a.sum_roundings, getattr(torch, dtype), stored_step, formulas, subnormal)
        with roundings:
            found = compute(roundings)
        for name, change in largest.items():
            difference = (found[name] - origin[name]).abs().nan_to_num(posinf=0.0)
            largest[name] = torch.maximum(change, difference)
    return {
        name: arithmetic[name].unit * tensor.abs() + arithmetic[name].tiny
        + _SAFETY * a.accumulator / STEP * _pooled(largest[name], rows, roles[name], many)
        for name, tensor in exact.items()
    }  # fmt: skip


def _pooled(changes: Tensor, rows: Rows, role: str, few_trials: bool) -> Tensor:
    """Returns the largest change of each row, at least the median of all rows, or the largest one of a column's sum.

    A single element may change little in all trials. After many trials, it is at most `_ELEMENT` times its own change.
    """
    if not changes.numel():
        return changes
    if role in ("column", "block"):
        return changes.amax().expand_as(changes)
    largest = changes
    if role == "element" and changes.dim():
        largest = changes.amax(tuple(range(rows.first, rows.first + rows.dims)), keepdim=True)
    elif role == "whole" and changes.dim():
        largest = changes.amax(-1, keepdim=True)
    largest = torch.maximum(largest, largest.median())
    return (largest if few_trials else torch.minimum(largest, _ELEMENT * changes)).expand_as(changes)
