"""The nodes of ops in the autograd graph.

A backward is computed by a kernel. Derivatives of higher order and of forward mode are computed by torch, from the op's
reference and gradient in torch's ops. A node is applied where no transform is active, or below the transform that asks
for it, so it does not need the support of torch.autograd.Function for transforms, a quarter of its cost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from tridal.devices.settings import current, restored
from tridal.pytorch import prepared
from tridal.pytorch.device_context import PreparedCall, Run
from tridal.pytorch.op_call import OpCall
from tridal.pytorch.private import SingleLevelFunction, is_batched_gradient, needs_dispatcher


@functools.lru_cache(maxsize=1024)
def prepared_node(call: PreparedCall) -> Run:
    """f(input[, mask]) for plain tensors: a prepared call with a node of its own. The mask gets no gradient.

    The backward needs no mask: where a score is masked, the output is zero, and so is the gradient.
    """
    run_forward, context, gradient = call.run, call.context, call.gradient
    saves_output = gradient.op.saves == "output"

    class PreparedNode(SingleLevelFunction):  # type: ignore[misc]
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
            if plain and not needs_dispatcher() and not is_batched_gradient(grad):
                run = prepared.backward(context, gradient, grad, saved)
                if run is not None:
                    return run(grad, saved), None
            with restored(context.settings):
                return gradient.dispatch(grad, saved), None

    return PreparedNode.apply  # type: ignore[no-any-return]


class ForwardNode(SingleLevelFunction):  # type: ignore[misc]
    """The node of any other tensor: apply(redispatch, input, call). The mask of the call gets no gradient."""

    @staticmethod
    def forward(
        ctx: Any, redispatch: Callable[[], AbstractContextManager[None]], input: torch.Tensor, call: OpCall
    ) -> torch.Tensor:
        """Calls the op below autograd."""
        with redispatch():
            output = call.dispatch(input)
        ctx.save_for_backward(output if call.op.saves == "output" else input.to(output.dtype))
        ctx.gradient, ctx.settings = call.gradient(input.dtype), current()
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        """dX."""
        (saved,) = ctx.saved_tensors
        with restored(ctx.settings):
            return None, ctx.gradient.dispatch(grad, saved), None
