"""The exact results and gradients of a call, in float64 on the CPU, and in trials with rounding errors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from tridal.ops import row_maths
from tridal.ops.op import Op
from tridal.ops.row_reduce import RowReduce

Tensor = torch.Tensor
Named = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Trial:
    """A computation with other roundings than the exact one."""

    dtype: torch.dtype = torch.float64
    change: Callable[[Tensor], Tensor] = lambda x: x
    """Changes tensors, and results of reductions."""
    rounding: Callable[[Tensor, torch.dtype], Tensor] = lambda x, dtype: x
    """Rounds what the reference rounds in between, see `RowReduce.rounded`."""


EXACT = Trial()


@dataclass(slots=True)
class Call:
    """A call of an op, and the results of it that kernels have stored."""

    op: Op
    arguments: tuple[Any, ...]
    """The arguments of the registered op, on the CPU. A tensor has the dtype in which the op gets it."""
    found: Named = field(default_factory=dict)
    """The results by name. What the reference computes after `RowReduce.rounded` is exact for these."""
    rounds: bool = False
    """Whether the reference rounds a number that is no result."""

    def results(self, trial: Trial = EXACT) -> Named:
        """Returns the results by name. Each of them is exact for the results that the reference rounds before."""
        with torch.no_grad():
            return self._results(self._arguments(trial), trial, before=True)

    def gradients(self, grads: Sequence[Tensor], trial: Trial = EXACT, twice: bool = False) -> Named:
        """Returns autograd's gradients of the reference, by argument. `grads` are those of the results.

        With `twice`, returns the gradients of the sum of the squares of all gradients.
        """
        arguments = self._arguments(trial)
        leaves = self.differentiable(arguments)
        results = self._results([leaves.get(n, a) for n, a in zip(self._names, arguments, strict=True)], trial)
        outputs = [results[name] for name in self.given]
        given = [trial.change(grad.double()).to(trial.dtype) for grad in grads]
        return dict(zip(leaves, gradients_of(outputs, list(leaves.values()), given, twice), strict=True))

    def declared_gradients(self, grads: Sequence[Tensor], trial: Trial = EXACT, stored: bool = True) -> Named:
        """Returns the gradients of the op's own gradient, by argument. `stored`: for the results that were found."""
        op, arguments = self.op, self._arguments(trial)
        given = self.gradient_arguments([trial.change(grad.double()) for grad in grads], trial.dtype, trial, stored)
        with torch.no_grad():
            found = row_maths.compute_gradient(op, *given, reduce=self._reduce(arguments, trial, {}))
        by_name = dict(zip(self._names, op.gradient_index, strict=True))
        pairs = {name: found[by_name[name]] for name in self.differentiable(arguments)}
        return {name: tensor.double() for name, tensor in pairs.items() if tensor is not None}

    def gradient_arguments(
        self, grads: Sequence[Tensor], dtype: torch.dtype, trial: Trial = EXACT, stored: bool = True
    ) -> tuple[Any, ...]:
        """Returns the arguments of the registered gradient in a dtype."""
        op, arguments = self.op, self._arguments(replace(trial, dtype=dtype))
        named = dict(zip(self.given, grads, strict=True))
        with torch.no_grad():
            results = self._results(arguments, trial) | (self._found(trial) if stored else {})
        saved, numbers = op.save(tuple(arguments), [results.get(result.name) for result in op.results])
        of_results = [named.get(result.name) for result in op.results[: op.differentiable_results]]
        tensors = [None if t is None else t.to(dtype) for t in (*of_results, *saved)]
        present = self.differentiable(arguments)
        mask = [any(name in present for name in names) for names in op.gradient_groups]
        return (*tensors, *numbers, *([mask] if len(mask) > 1 else []))

    def differentiable(self, arguments: Sequence[Any]) -> Named:
        """Returns the tensors that have a gradient, as leaves of autograd."""
        named = zip(self._names, arguments, self.op.gradient_index, strict=True)
        return {n: a.detach().requires_grad_() for n, a, i in named if i >= 0 and isinstance(a, Tensor)}

    @property
    def given(self) -> list[str]:
        """The names of the results that the function returns and that have a gradient."""
        return [result.name for result in self.op.results if result.name in self.found and result.gradient is not None]

    @property
    def _names(self) -> tuple[str, ...]:
        return self.op.signature.names

    def _found(self, trial: Trial) -> Named:
        return {
            name: trial.change(t.double()).to(trial.dtype) for name, t in self.found.items() if t.is_floating_point()
        }

    def _arguments(self, trial: Trial) -> list[Any]:
        def converted(value: Any) -> Any:
            if isinstance(value, Tensor) and value.is_floating_point():
                return trial.change(value.double()).to(trial.dtype)
            return trial.dtype if isinstance(value, torch.dtype) else value

        return [converted(value) for value in self.arguments]

    def _results(self, arguments: Sequence[Any], trial: Trial, before: bool = False) -> Named:
        """Returns the results. `before`: those that the reference rounds are as before the rounding."""
        reduce = self._reduce(arguments, trial, self._found(trial))
        own = None if trial is EXACT and self.op.torch_function is not None else reduce
        computed = row_maths.compute(self.op, *arguments, reduce=own)
        named = zip((result.name for result in self.op.results), computed, strict=True)
        results = {name: tensor for name, tensor in named if tensor is not None}
        return results | {n: t.reshape(results[n].shape) for n, t in reduce.before.items() if before}

    def _reduce(self, arguments: Sequence[Any], trial: Trial, found: Named) -> _Reduce:
        rows = self.op.signature.rows(tuple(arguments))
        return _Reduce(self, rows.flat(arguments[0]), rows.first, trial, found)


class _Reduce(RowReduce):
    """Reduces rows in a trial."""

    def __init__(self, call: Call, x: Tensor, dim: int, trial: Trial, found: Named) -> None:
        super().__init__(x, dim)
        self._call = call
        self._trial = trial
        self._found = found
        self.before: Named = {}
        """The numbers that were rounded to a result, before they were rounded."""

    @property
    def dtypes(self) -> Mapping[str, torch.dtype]:
        """The dtypes of the tensors of the call, instead of those of the trial."""
        named = zip(self._call.op.signature.names, self._call.arguments, strict=True)
        return {name: value.dtype for name, value in named if isinstance(value, Tensor)}

    @dtypes.setter
    def dtypes(self, _: Any) -> None:
        pass

    def __call__(self, x: Tensor, how: Literal["max", "sum"]) -> Tensor:
        return self._trial.change(super().__call__(x, how))

    def total(self, x: Tensor) -> Tensor:
        return self._trial.change(super().total(x))

    def rounded(self, x: Tensor, dtype: torch.dtype, result: str | None = None) -> Tensor:
        if result is not None and result in self._found:
            self.before[result] = x
            return _Replaced.apply(x, self._found[result].reshape(x.shape))  # type: ignore[no-any-return, no-untyped-call]
        self._call.rounds = True
        return self._trial.rounding(x, dtype)


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
    """Returns the gradients of sum(result * grad); with `twice`, those of the sum of their squares.

    A tensor that a gradient does not depend on has zeros.
    """
    found = torch.autograd.grad(results, tensors, grads, create_graph=twice, materialize_grads=True)
    if not twice:
        return list(found)
    total = functools.reduce(torch.add, [gradient.square().sum() for gradient in found])
    if not total.requires_grad:  # a linear op
        return [torch.zeros_like(tensor) for tensor in tensors]
    return list(torch.autograd.grad(total, tensors, materialize_grads=True))
