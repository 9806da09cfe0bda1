"""The exact results and gradients of a call, in float64 on the CPU, or with simulated roundings."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tridal.ops import row_math
from tridal.ops.op import Op
from tridal.ops.row_reduce import RowReduce
from tridal.ops.signature import Arguments, Rows
from tridal.testing.roundings import Roundings

Tensor = torch.Tensor
Named = dict[str, Tensor]


@dataclass(slots=True)
class Call:
    """A call of an op, and the results of it that kernels have stored."""

    op: Op
    arguments: tuple[Any, ...]
    """The arguments of the registered op, on the CPU. A tensor has the dtype in which the op gets it."""
    found: Named = field(default_factory=dict)
    """The results by name. What the reference computes after `RowReduce.rounded` is exact for these."""

    @property
    def bound(self) -> Arguments:
        """The arguments, with what follows from the roles of the tensors."""
        return Arguments(self.op.signature, self.arguments)

    @property
    def rows(self) -> Rows:
        """Where the rows of the first tensor are."""
        return self.bound.rows

    def results(self, roundings: Roundings | None = None) -> Named:
        """The results by name. Each of them is exact for the results that the reference rounds before."""
        with torch.no_grad():
            return self._results(self._arguments(roundings), roundings, before=True)

    def gradients(self, grads: Sequence[Tensor], roundings: Roundings | None = None, twice: bool = False) -> Named:
        """Autograd's gradients of the reference, by argument. `grads` are those of the results.

        With `twice`, these are the gradients of the sum of the squares of all gradients.
        """
        arguments = self._arguments(roundings)
        leaves = self.differentiable(arguments)
        results = self._results([leaves.get(n, a) for n, a in zip(self._names, arguments, strict=True)], roundings)
        outputs = [results[name] for name in self.given]
        return dict(zip(leaves, gradients_of(outputs, list(leaves.values()), grads, twice), strict=True))

    def declared_gradients(
        self, grads: Sequence[Tensor], roundings: Roundings | None = None, stored: bool = True
    ) -> Named:
        """The gradients of the op's own gradient, by argument. `stored`: for the results that were found.

        That of a tensor on which no result of the call depends is zero.
        """
        op, arguments = self.op, self._arguments(roundings)
        given = self.gradient_arguments(grads, torch.float64, roundings, stored)
        with torch.no_grad():
            found = row_math.compute_gradient(op, *given, reduce=self._reduce(arguments, roundings, {}))
        by_name = dict(zip(self._names, op.gradient_index, strict=True))
        pairs = {name: (leaf, found[by_name[name]]) for name, leaf in self.differentiable(arguments).items()}
        return {n: torch.zeros_like(leaf) if t is None else t.double() for n, (leaf, t) in pairs.items()}

    def gradient_arguments(
        self, grads: Sequence[Tensor], dtype: torch.dtype, roundings: Roundings | None = None, stored: bool = True
    ) -> tuple[Any, ...]:
        """The arguments of the registered gradient in a dtype."""
        op, arguments = self.op, self._arguments(roundings, dtype)
        known = Arguments(op.signature, arguments).named
        with torch.no_grad():
            known |= self._results(arguments, roundings) | (self._found(dtype) if stored else {})
        for name, sources in op.saved.items():
            known[name] = next((known[source] for source in sources if known.get(source) is not None), None)
        given = dict(zip(self.given, grads, strict=True))
        known |= {result.gradient: given.get(result.name) for result in op.results if result.gradient is not None}
        present = self.differentiable(arguments)
        known["output_mask"] = [any(name in present for name in names) for names in op.gradient_groups]
        values = [known.get(argument.name, argument.default) for argument in op.gradient_signature.arguments]
        return tuple(v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for v in values)

    def differentiable(self, arguments: Sequence[Any]) -> Named:
        """The tensors that have a gradient, as leaves of autograd."""
        named = zip(self._names, arguments, self.op.gradient_index, strict=True)
        chosen = {n: a for n, a, i in named if i >= 0 and isinstance(a, Tensor)}
        return {n: a.detach().requires_grad_() for n, a in chosen.items() if a.is_floating_point()}

    @property
    def given(self) -> list[str]:
        """The names of the results that the function returns and that have a gradient."""
        return [result.name for result in self.op.results if result.name in self.found and result.gradient is not None]

    @property
    def _names(self) -> tuple[str, ...]:
        return self.op.signature.names

    def _found(self, dtype: torch.dtype = torch.float64) -> Named:
        return {name: t.to(dtype) for name, t in self.found.items() if t.is_floating_point()}

    def _arguments(self, roundings: Roundings | None, dtype: torch.dtype = torch.float64) -> list[Any]:
        def converted(value: Any) -> Any:
            if isinstance(value, Tensor) and value.is_floating_point():
                value = value.to(dtype)
                return value if roundings is None else roundings.change(value)
            return dtype if isinstance(value, torch.dtype) else value

        return [converted(value) for value in self.arguments]

    def _results(self, arguments: Sequence[Any], roundings: Roundings | None, before: bool = False) -> Named:
        """The results. `before`: those that the reference rounds are as before the rounding."""
        reduce = self._reduce(arguments, roundings, self._found(arguments[0].dtype))
        own = None if roundings is None and self.op.torch_function is not None else reduce
        computed = row_math.compute(self.op, *arguments, reduce=own)
        named = zip((result.name for result in self.op.results), computed, strict=True)
        # Bools cannot be subtracted.
        numbers = ((name, t.long() if t is not None and t.dtype is torch.bool else t) for name, t in named)
        results = {name: tensor for name, tensor in numbers if tensor is not None}
        return results | {n: t.reshape(results[n].shape) for n, t in reduce.before.items() if before}

    def _reduce(self, arguments: Sequence[Any], roundings: Roundings | None, stored: Named) -> _Reduce:
        dtypes = {n: a.dtype for n, a in zip(self._names, self.arguments, strict=True) if isinstance(a, Tensor)}
        return _Reduce(self.rows.flat(arguments[0]), self.rows.first, dtypes, roundings, stored)


class _Reduce(RowReduce):
    """Reduces rows in float64, and rounds numbers as the kernels did, whose results are `stored`."""

    def __init__(
        self, x: Tensor, dim: int, dtypes: Mapping[str, torch.dtype], roundings: Roundings | None, stored: Named
    ) -> None:
        super().__init__(x, dim)
        self._dtypes, self._roundings, self._stored = dtypes, roundings, stored
        self.before: Named = {}
        """The numbers that were rounded to a result, before they were rounded."""

    dtypes = property(lambda self: self._dtypes, lambda self, _: None)  # those of the call, not float64

    def rounded(self, x: Tensor, dtype: torch.dtype, result: str | None = None) -> Tensor:
        if result is not None and result in self._stored:
            self.before[result] = x
            return _Replaced.apply(x, self._stored[result].reshape(x.shape))  # type: ignore[no-any-return, no-untyped-call]
        return x if self._roundings is None else self._roundings.stored(x, dtype)


class _Replaced(torch.autograd.Function):
    """Replaces numbers by rounded ones. The gradient passes through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor) -> Tensor:
        return rounded.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def gradients_of(
    results: Sequence[Tensor], tensors: Sequence[Tensor], grads: Sequence[Tensor], twice: bool = False
) -> list[Tensor]:
    """Gradients of sum(result * grad); with `twice`, those of the sum of their squares. They may be zeros."""
    gradients = torch.autograd.grad(results, tensors, grads, create_graph=twice, materialize_grads=True)
    if not twice:
        return list(gradients)
    total = functools.reduce(torch.add, [gradient.square().sum() for gradient in gradients])
    if not total.requires_grad:  # a linear op
        return [torch.zeros_like(tensor) for tensor in tensors]
    return list(torch.autograd.grad(total, tensors, materialize_grads=True))
