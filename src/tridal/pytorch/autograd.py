"""The nodes of ops in the autograd graph.

A backward is computed by a kernel. Derivatives of higher order and of forward mode are computed by torch, from the op's
reference and gradient in torch's ops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from tridal.devices.settings import current, restored
from tridal.ops.row_op import RowOp
from tridal.pytorch import prepared
from tridal.pytorch.device_context import PreparedCall
from tridal.pytorch.private import SingleLevelFunction, batched_gradients, needs_dispatcher

Redispatch = Callable[[], AbstractContextManager[None]]


class Node(SingleLevelFunction):  # type: ignore[misc]
    """torch.autograd.Function without its support for transforms, at three quarters of its cost.

    It is applied where no transform is active, or below the transform that asks for a node.
    """

    if TYPE_CHECKING:
        apply: ClassVar[Callable[..., torch.Tensor]]


@functools.lru_cache(maxsize=1024)
def prepared_node(call: PreparedCall) -> Callable[..., torch.Tensor]:
    """f(input[, mask]) for plain tensors: a prepared call with a node of its own. The mask gets no gradient.

    The backward needs no mask: where a score is masked, the output is zero, and so is the gradient.
    """
    run_forward, context, op, dim, dtype = call.run, call.context, call.op, call.dim, call.dtype
    parameters, saves_output = call.backward_parameters, call.op.saves == "output"

    class PreparedNode(Node):
        @staticmethod
        def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
            """Runs the prepared call."""
            output = run_forward(*tensors)
            ctx.save_for_backward(output if saves_output else tensors[0].to(output.dtype))
            return output

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
            """Launches the kernel, unless a mode or a further derivative has to see the op."""
            (saved,) = ctx.saved_tensors
            plain = type(grad) is torch.Tensor is type(saved) and not torch.is_grad_enabled()
            if plain and not needs_dispatcher() and not batched_gradients():
                run = prepared.backward(context, op, grad, saved, dim, dtype, parameters)
                if run is not None:
                    return run(grad, saved), None
            with restored(context.settings):
                return registered_gradient(op, grad, saved, dim, dtype, parameters), None

    return PreparedNode.apply


class ForwardNode(Node):
    """The node of any other tensor: apply(redispatch, input, op, modified, dim, dtype, *arguments).

    `arguments` are the op's registered arguments after dtype; a mask among them gets no gradient. `modified` says
    whether its scores are scaled and masked.
    """

    @staticmethod
    def forward(
        ctx: Any, redispatch: Redispatch, input: torch.Tensor, op: RowOp, dim: int, dtype: torch.dtype, *arguments: Any
    ) -> torch.Tensor:
        """Calls the op below autograd."""
        with redispatch():
            output: torch.Tensor = overload(op.name)(input, dim, dtype, *arguments)
        ctx.save_for_backward(output if op.saves == "output" else input.to(output.dtype))
        number = len(op.parameters)
        values = (*arguments[:number], *tuple(op.parameters.values())[len(arguments) :])  # defaults are not passed
        scale = arguments[number + 1] if op.scale_mask and len(arguments) > number + 1 else 1.0
        ctx.arguments = op, dim, input.dtype, op.backward_parameters(values, scale)
        ctx.settings = current()
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        """dX."""
        (saved,) = ctx.saved_tensors
        op, dim, dtype, parameters = ctx.arguments
        with restored(ctx.settings):
            # PyTorch accepts more gradients than there are inputs, if they are None.
            return None, registered_gradient(op, grad, saved, dim, dtype, parameters), *[None] * 12


def registered_gradient(
    op: RowOp,
    grad: torch.Tensor,
    saved: torch.Tensor,
    dim: int,
    dtype: torch.dtype,
    parameters: tuple[float | None, ...],
) -> torch.Tensor:
    """dX by the registered op, for any kind of tensors. Differentiable."""
    values = op.keywords(op.backward, parameters).values()
    return overload(op.backward.name)(grad, saved, dim, dtype, *values)  # type: ignore[no-any-return]


def overload(name: str) -> Any:
    """A registered op."""
    return getattr(torch.ops.tridal, name).default
