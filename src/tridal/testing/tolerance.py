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

An op of one tensor can define its own bounds (`Op.bounds`). `DerivedBounds` are the bounds of all other ops. They
measure how sensitive the results are to rounding errors: they slightly change the tensors and the statistics of the
op's reference, in float64 and in float32. The largest change of a row's results determines the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from tridal.ops.signature import Rows
from tridal.testing.exact import EXACT, Trial

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""Unit roundoff of each dtype, for rounding to nearest."""

TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
"""Error of storing a subnormal. All devices keep float16 subnormals. Some devices flush the others to zero."""

Tensor = torch.Tensor

_CHANGES = ((2.0**-20, torch.float64), (2.0**-23, torch.float32))  # (step, dtype) of a trial, see DerivedBounds
_TRIALS, _MANY_ELEMENTS = 6, 50_000


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
    """Error bounds for any op. They measure how small changes of tensors and statistics affect the op's results.

    Each trial changes the tensors and the results of reductions by random relative amounts up to a step. Half of the
    trials run in float32. A bound uses the largest change of a row's results, divided by the step. Changes of the
    tensors alone would not show errors of intermediate results that cancel in exact arithmetic.
    """

    rows: Rows
    exact: Mapping[str, Tensor]
    """The exact value of each result or gradient."""
    roles: Mapping[str, str | None]
    """Whether each holds a number per element, row or column."""
    compute: Callable[[Trial], Mapping[str, Tensor]]
    """Computes all of them in a trial."""

    def bounds(self, arithmetic: Mapping[str, Arithmetic], rounds: bool = False) -> dict[str, Tensor]:
        """Returns the bound of the error of each element. `rounds`: whether the op rounds intermediate results."""
        generator = torch.Generator().manual_seed(0)
        largest = {name: torch.zeros_like(tensor) for name, tensor in self.exact.items()}
        rounded = {name: torch.zeros_like(tensor) for name, tensor in self.exact.items()}
        origin = self.compute(EXACT)  # not `exact`: a wrong gradient of the op would be taken for a sensitive one
        most = max((tensor.numel() for tensor in self.exact.values()), default=0)

        def changed(x: Tensor, step: float) -> Tensor:
            """Returns the tensor with each element changed by a random relative amount between -step and step."""
            return x * (1 + step * (2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1))

        def run(trial: Trial, step: float, found: dict[str, Tensor]) -> None:
            for name, tensor in self.compute(trial).items():
                difference = ((tensor.double() - origin[name].double()).abs() / step).nan_to_num(posinf=0.0)
                found[name] = torch.maximum(found[name], difference)

        for step, dtype in _CHANGES * (_TRIALS if most <= _MANY_ELEMENTS else 2):
            run(Trial(dtype, lambda x, step=step: changed(x, step)), step, largest)  # type: ignore[misc]
        for _ in range(_TRIALS * rounds):
            trial = replace(EXACT, rounding=lambda x, dtype: changed(x, 2 * UNIT[str(dtype).removeprefix("torch.")]))
            run(trial, 1.0, rounded)
        return {
            name: a.unit * exact.abs() + a.noise(torch.zeros(())) * (exact.abs() + 2 * self._of_row(name, largest))
            + self._of_row(name, rounded) + a.tiny
            for name, exact in self.exact.items() for a in [arithmetic[name]]
        }  # fmt: skip

    def _of_row(self, name: str, changes: Mapping[str, Tensor]) -> Tensor:
        """Returns the largest change of a row, or of all sums over rows."""
        tensor = changes[name]
        if tensor.numel() == 0 or self.roles[name] == "row":
            return tensor
        if self.roles[name] == "column":
            return tensor.amax().expand_as(tensor)
        dims = tuple(range(self.rows.first, self.rows.first + self.rows.dims)) if tensor.dim() else ()
        return tensor.amax(dims, keepdim=True).expand_as(tensor)
