"""Simulates roundings: changes the result of each of torch's operations by a random relative amount."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Tensor = torch.Tensor
Formulas: TypeAlias = Mapping[str, Callable[..., Tensor]]

STEP = 2.0**-24
"""The largest relative change. It is so small that errors of higher order are negligible."""
_MATMULS = {"mm", "mv", "addmm", "bmm", "baddbmm"}
_SUMS = {"sum", "mean", "cumsum", "var", "std", "linalg_vector_norm", *_MATMULS}
_EXACT = {
    "abs", "amax", "amin", "arange", "cat", "clamp", "clamp_max", "clamp_min", "clone", "constant_pad_nd", "copy_",
    "empty", "empty_like", "empty_strided", "eye", "fill_", "flip", "full", "full_like", "gather", "index",
    "index_select", "masked_fill", "max", "maximum", "min", "minimum", "neg", "new_empty", "new_empty_strided",
    "new_full", "new_ones", "new_zeros", "ones", "ones_like", "relu", "roll", "scalar_tensor", "scatter", "sign",
    "stack", "where", "zero_", "zeros", "zeros_like", "_to_copy",
}  # fmt: skip
"""Operations that make, copy, choose or compare numbers, and never round them. What `empty` makes would be random."""


class Roundings(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Changes each number that an operation computes by a random relative amount of at most `STEP`.

    The terms and the result of a sum change by the square root of the number of roundings of a term. A matmul reads and
    writes tensors in the dtype of the call, so that these change by its roundings, too.

    Args:
        seed: the seed of the random changes.
        row: the dim and the length of a row.
        sum_roundings: the number of roundings of a term of its sum.
        matmul_dtype: the dtype of the tensors that matmuls read and write.
        stored_step: stored_step(dtype) is the largest relative change of a number that is stored in a dtype.
        formulas: further operations by name, in smaller operations.
        subnormal: the smallest normal number, and the largest change of a number below it, which devices may flush.
    """

    def __init__(
        self, seed: int, row: tuple[int, int], sum_roundings: float, matmul_dtype: torch.dtype,
        stored_step: Callable[[torch.dtype], float], formulas: Formulas, subnormal: tuple[float, float],
    ) -> None:  # fmt: skip
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator, self._truncates = torch.Generator().manual_seed(seed), seed == 0
        self._row, self._row_step = row, STEP * math.sqrt(max(sum_roundings, 1.0))
        self._in_order = sum_roundings >= row[1] > 1  # not as a tree
        self._stored_step, self._matmul_dtype = stored_step, matmul_dtype
        self._formulas = {"logsumexp": logsumexp, **formulas}
        self._smallest, self._flush = subnormal

    def change(self, x: Tensor, step: float = STEP) -> Tensor:
        """Changes numbers by random relative amounts of at most `step`."""
        return x * self._factors(x, step)

    def stored(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Changes numbers as those are that are stored in a dtype. With the seed 0, truncates all of them.

        Triton's interpreter truncates, so errors of several roundings do not cancel.
        """
        step = self._stored_step(dtype)
        return x * (1 - step) if self._truncates else self.change(x, step)

    def _factors(self, x: Tensor, step: float) -> Tensor:
        made = torch.empty(x.shape, dtype=torch.float64)
        return made.uniform_(1 - step, 1 + step, generator=self._generator)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Computes an operation, and changes its result."""
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if name in self._formulas:
            with self:
                return self._formulas[name](*args, **kwargs)
        step = STEP
        if name in _SUMS:
            step, is_row = self._sum_step(name, args)
            args = [self.change(arg, step) if _is_floating(arg) else arg for arg in args]
            if self._in_order and is_row and name in ("sum", "mean"):
                args[0] = in_order(args[0], self._row[0])
        found = func(*args, **kwargs)
        returned = func._schema.returns
        aliased = any(r.alias_info is not None and not r.alias_info.is_write for r in returned)
        if name not in _EXACT and not aliased:
            for tensor in found if isinstance(found, (tuple, list)) else (found,):
                if _is_floating(tensor) and tensor.numel():
                    is_subnormal = (tensor != 0) & (tensor.abs() < self._smallest)
                    tensor.mul_(self._factors(tensor, step))
                    if is_subnormal.any():
                        tensor.add_(is_subnormal * (self._factors(tensor, 1.0) - 1), alpha=self._flush)
        return found

    def _sum_step(self, name: str, args: Sequence[Any]) -> tuple[float, bool]:
        """The largest relative change of a sum, and whether it is the sum of a row."""
        x = args[-2] if name in ("addmm", "baddbmm") else args[0]
        if name in _MATMULS:
            return max(self._stored_step(self._matmul_dtype), STEP * math.sqrt(x.shape[-1])), False
        dims = args[1] if len(args) > 1 else None
        dims = [dims] if isinstance(dims, int) else dims or range(x.dim())
        count = math.prod(x.shape[dim] for dim in dims) if x.dim() else 1
        is_row = len(dims) == 1 and (dims[0] % max(x.dim(), 1), count) == self._row
        return self._row_step if is_row else STEP * math.sqrt(max(count, 1)), is_row


def in_order(terms: Tensor, dim: int) -> Tensor:
    """The terms as they change a sum that adds them one after the other, with the precision `STEP`.

    An addition rounds a term to a multiple of the sum's last digit. Many small terms all become less, or vanish.
    """
    digit = STEP * torch.ldexp(torch.ones_like(terms), terms.cumsum(dim).frexp().exponent)
    return (terms / digit).round() * digit


def _is_floating(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """Computes torch.logsumexp in smaller operations, whose results kernels round."""
    largest = x.amax(dim, keepdim=True)
    finite = torch.where(largest.isfinite(), largest, 0.0)
    found = finite + (x - finite).exp().sum(dim, keepdim=True).log()
    return found if keepdim else found.squeeze(dim)
