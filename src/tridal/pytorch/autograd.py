"""Autograd nodes of the ops.

A kernel computes the backward. For higher-order and forward-mode derivatives, torch differentiates the op's reference
or gradient. The nodes derive from `private.Node`, which costs a quarter less than torch.autograd.Function. It does
not support torch.func transforms: a node runs where no transform is active, or through `private.apply_node`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from tridal.devices import registry
from tridal.devices.settings import current, restored
from tridal.pytorch import prepared
from tridal.pytorch.device_context import PreparedCall, RowRun
from tridal.pytorch.op_call import OpCall
from tridal.pytorch.private import Node, is_batched_gradient, needs_dispatcher, skip_frames

_compiling = torch.compiler.is_dynamo_compiling


@functools.lru_cache(maxsize=1024)
def prepared_node(call: PreparedCall) -> RowRun:
    """Returns f(input[, mask]), which runs a prepared call as an autograd node. The tensors must be plain tensors.

    The mask gets no gradient. The backward does not read the mask, because the gradient of a zero output is zero.
    """
    run_forward, context, gradient = call.run, call.context, call.gradient
    saves_output = gradient.op.saves == "output"

    class PreparedNode(Node):
        @staticmethod
        def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
            """Runs the prepared call."""
            output = run_forward(*tensors)
            ctx.save_for_backward(output if saves_output else tensors[0].to(output.dtype))
            return output

        @staticmethod
        @skip_frames
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
            """Launches the gradient kernel, or calls the registered op if a mode or another derivative must see it."""
            (saved,) = ctx.saved_tensors
            if _compiling():  # compiled autograd traces the backward
                return gradient.dispatch(grad, saved), None
            plain = type(grad) is torch.Tensor is type(saved) and not torch.is_grad_enabled()
            if plain and not needs_dispatcher() and not is_batched_gradient(grad):
                run = prepared.backward(context, gradient, grad, saved)
                if run is not None:
                    return run(grad, saved), None
            with restored(context.settings):
                return gradient.dispatch(grad, saved), None

    return PreparedNode.apply  # type: ignore[no-any-return]


registry.on_change(prepared_node.cache_clear)  # otherwise it keeps the contexts and backends of earlier calls


class ForwardNode(Node):
    """The autograd node of all other calls: apply(redispatch, input, call). The mask of the call gets no gradient."""

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
    @skip_frames
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        """Returns dX."""
        (saved,) = ctx.saved_tensors
        if _compiling():  # see `PreparedNode.backward`
            return None, ctx.gradient.dispatch(grad, saved), None
        with restored(ctx.settings):
            return None, ctx.gradient.dispatch(grad, saved), None
