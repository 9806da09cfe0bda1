"""The call of an op without its tensors, as one immutable value, and its form as a call of the registered op."""

from __future__ import annotations

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
    """Values of the kernel's parameters. A gradient's scale of 1 is None."""
    modification: ScoreModification | None = None

    @classmethod
    def of(cls, op: RowOp, dim: int, dtype: torch.dtype, *arguments: Any) -> OpCall:
        """From the arguments of the registered op. The dispatcher omits trailing arguments that equal their default."""
        defaults = (*map(float, op.parameters.values()), None, 1.0, False, False)
        given: tuple[Any, ...] = (*arguments, *defaults[len(arguments) :])
        *parameters, mask, scale, causal, zero_masked_rows = given
        modified = mask is not None or scale != 1 or causal or zero_masked_rows
        modification = ScoreModification(scale, mask, causal, zero_masked_rows) if modified else None
        return cls(op, dim, dtype, tuple(parameters), modification)

    @property
    def kernel(self) -> RowKernel:
        """The kernel that computes the call."""
        return self.op.forward

    @property
    def mask(self) -> torch.Tensor | None:
        """The mask of the scores."""
        return None if self.modification is None else self.modification.mask

    def dispatch(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Calls the registered op, which accepts all kinds of tensors."""
        arguments: list[Any] = [1.0 if value is None else value for value in self.parameters]
        if self.modification is not None:
            scale, mask, causal, zero_masked_rows = self.modification
            arguments += [mask, scale, causal, zero_masked_rows]
        dtype = self.dtype or tensors[0].dtype
        return overload(self.kernel.name)(*tensors, self.dim, dtype, *arguments)  # type: ignore[no-any-return]

    def gradient(self, dtype: torch.dtype) -> GradientCall:
        """The call of the op's gradient, for an input of that dtype."""
        scale = 1.0 if self.modification is None else self.modification.scale
        return GradientCall(self.op, self.dim, dtype, self.op.backward_parameters(self.parameters, scale))


class GradientCall(OpCall):
    """The arguments of an op's gradient, except for the gradient of the output and the saved tensor."""

    __slots__ = ()

    @classmethod
    def of(cls, op: RowOp, dim: int, dtype: torch.dtype, *arguments: Any) -> GradientCall:
        """From the arguments of the registered op. The dispatcher omits trailing arguments that equal their default."""
        names, values = op.backward.parameters, {"scale": 1.0, **op.parameters}
        given = (*arguments, *(float(values[name]) for name in names[len(arguments) :]))
        unscaled = tuple(None if name == "scale" and v == 1 else v for name, v in zip(names, given, strict=True))
        return cls(op, dim, dtype, unscaled)

    @property
    def kernel(self) -> RowKernel:
        """The kernel that computes the call."""
        return self.op.backward


def overload(name: str) -> Any:
    """The registered op with this name."""
    return getattr(torch.ops.tridal, name).default
