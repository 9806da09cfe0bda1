"""`OpCall` and `GradientCall`: the arguments of an op or of its gradient, and the call of the registered op."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from tridal.ops.row_op import RowOp
from tridal.ops.scale_mask import ScoreModification
from tridal.runtime.row_kernel import RowKernel


class OpCall(NamedTuple):
    """The arguments of an op, except for the input."""

    op: RowOp
    dim: int
    dtype: torch.dtype | None
    """dtype of the result; None stands for the input's dtype."""
    parameters: tuple[Any, ...] = ()
    """Values of the kernel's parameters. In a `GradientCall`, the scale None means 1."""
    modification: ScoreModification | None = None

    @classmethod
    def of(cls, op: RowOp, dim: int, dtype: torch.dtype, *arguments: Any) -> OpCall:
        """Creates a call from the registered op's arguments. The dispatcher omits trailing default arguments."""
        number = len(op.parameters)
        if len(arguments) <= number:
            return cls(op, dim, dtype, (*arguments, *defaults(op, False)[len(arguments) :]))
        given: tuple[Any, ...] = (*arguments[number:], *(None, 1.0, False, False)[len(arguments) - number :])
        mask, scale, causal, zero_masked_rows = given
        modified = mask is not None or scale != 1 or causal or zero_masked_rows
        modification = ScoreModification(scale, mask, causal, zero_masked_rows) if modified else None
        return cls(op, dim, dtype, arguments[:number], modification)

    @property
    def kernel(self) -> RowKernel:
        """The kernel that computes the call."""
        return self.op.forward

    @property
    def mask(self) -> torch.Tensor | None:
        """The mask of the score modification; None if there is no mask."""
        return None if self.modification is None else self.modification.mask

    def dispatch(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Calls the registered op, which accepts plain tensors and tensor subclasses."""
        return self._dispatch(self.op.forward, tensors)

    def _dispatch(self, kernel: RowKernel, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        arguments: list[Any] = [1.0 if value is None else value for value in self.parameters]
        if self.modification is not None:
            scale, mask, causal, zero_masked_rows = self.modification
            arguments += [mask, scale, causal, zero_masked_rows]
        dtype = self.dtype or tensors[0].dtype
        return overload(kernel.name)(*tensors, self.dim, dtype, *arguments)  # type: ignore[no-any-return]

    def gradient(self, dtype: torch.dtype) -> GradientCall:
        """Returns the arguments of the op's gradient, for an input of this dtype."""
        scale = 1.0 if self.modification is None else self.modification.scale
        return GradientCall(self.op, self.dim, dtype, self.op.backward_parameters(self.parameters, scale))


class GradientCall(OpCall):
    """The arguments of an op's gradient, except for dY and the saved tensor."""

    __slots__ = ()

    @classmethod
    def of(cls, op: RowOp, dim: int, dtype: torch.dtype, *arguments: Any) -> GradientCall:
        """Creates a call from the registered op's arguments. The dispatcher omits trailing default arguments."""
        return cls(op, dim, dtype, (*arguments, *defaults(op, True)[len(arguments) :]))

    @property
    def kernel(self) -> RowKernel:
        """The kernel that computes the call."""
        return self.op.backward

    def dispatch(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Calls the registered op of the gradient."""
        return self._dispatch(self.op.backward, tensors)


@functools.cache
def defaults(op: RowOp, gradient: bool) -> tuple[float, ...]:
    """Returns the default values of the parameters of an op's forward kernel, or of its gradient kernel."""
    kernel = op.backward if gradient else op.forward
    values = {"scale": 1.0, **op.parameters}
    return tuple(float(values[name]) for name in kernel.parameters)


def overload(name: str) -> Any:
    """Returns the registered op with this name, as an `OpOverload`."""
    return getattr(torch.ops.tridal, name).default
