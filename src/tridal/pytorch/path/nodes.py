"""The autograd nodes: one for prepared calls, and one for all other calls. Kernels compute the backward of both.

For higher-order and forward-mode derivatives, torch differentiates the op's reference or gradient. The nodes derive
from `private.Node`, which costs a quarter less than torch.autograd.Function. It does not support torch.func transforms:
a node runs where no transform is active, or through `private.apply_node`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tridal.devices.settings import Settings, current, restored
from tridal.ops.op import Op
from tridal.pytorch.path.rules import Results, Rules, check_newest, overload
from tridal.pytorch.torch import private

Tensor = torch.Tensor
_compiling = torch.compiler.is_dynamo_compiling


class CallNode(private.Node):
    """The node of a prepared call: apply(call, *tensors). It returns only the results of the function."""

    @staticmethod
    def forward(ctx: Any, call: Any, *tensors: Tensor | None) -> Any:
        """Runs the prepared call and saves what its gradient needs."""
        count = call.results
        results = call.run(*tensors)
        ctx.save_for_backward(*call.saved(tensors, results))
        ctx.call = call
        ctx.set_materialize_grads(call.fills_gradients)
        if count == 1:
            return results[0]
        if call.differentiable < count:
            ctx.mark_non_differentiable(*results[call.differentiable : count])
        return results[:count]

    @staticmethod
    @private.skip_frames
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """Returns the gradients of the tensors that need one."""
        call = ctx.call
        if grads[0] is None and all(grad is None for grad in grads):
            return (None,) * (1 + len(call.inputs))
        grads = grads[: call.rules.op.differentiable_results]
        return None, *call.gradients((*grads, *call.absent, *ctx.saved_tensors))


class OpNode(private.Node):
    """The node of all other calls: apply(redispatch, rules, compute, *arguments)."""

    @staticmethod
    def forward(ctx: Any, redispatch: Any, rules: Rules, compute: Callable[..., Any], *arguments: Any) -> Results:
        """Computes the op below autograd and saves what its gradient needs."""
        with redispatch():
            results = compute(*arguments)
        results = (results,) if isinstance(results, torch.Tensor) else results
        saved, ctx.numbers = rules.op.save(arguments, results)
        ctx.save_for_backward(*saved)
        ctx.dtypes = [argument.dtype if isinstance(argument, torch.Tensor) else None for argument in arguments]
        ctx.rules, ctx.settings = rules, current()
        ctx.set_materialize_grads(rules.op.fills_gradients)
        mask = output_mask(rules.op.gradient_index, ctx.needs_input_grad[3:])
        others = results[differentiable_results(rules.op, mask) :]
        ctx.mark_non_differentiable(*(result for result in others if result is not None))
        return results

    @staticmethod
    @private.skip_frames
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Returns the gradients of the arguments that need one."""
        op, needed = ctx.rules.op, ctx.needs_input_grad[3:]
        grads = grads[: op.differentiable_results]
        if all(grad is None for grad in grads):
            return (None,) * (3 + len(needed))
        mask = output_mask(op.gradient_index, needed)
        results = gradients(ctx.rules, ctx.settings, (*grads, *ctx.saved_tensors), ctx.numbers, mask)
        found = [results[p] if need and p >= 0 else None for need, p in zip(needed, op.gradient_index, strict=True)]
        pairs = zip(found, ctx.dtypes, strict=True)
        return (None, None, None, *(grad if grad is None else grad.to(dtype) for grad, dtype in pairs))


def output_mask(gradient_index: Sequence[int], needed: Sequence[bool]) -> list[bool]:
    """Returns the `output_mask` of a backward. `needed` tells for each argument of the op if it needs a gradient."""
    mask = [False] * (max(gradient_index) + 1)
    for need, position in zip(needed, gradient_index, strict=True):
        if need and position >= 0:
            mask[position] = True
    return mask


def differentiable_results(op: Op, mask: Sequence[bool]) -> int:
    """Returns how many results depend on the tensors whose gradients `mask` selects. These are the first ones."""
    depends = op.fills_gradients or any(mask[:1]) or op.arguments[0].role == "whole"
    return op.differentiable_results if depends else 1


def has_gradient(op: Op, arguments: Sequence[Any]) -> bool:
    """Returns whether the op's gradient covers all tensors that require one. It does not cover a mask, for example."""
    if op.gradient is None:
        return False
    pairs = zip(arguments, op.gradient_index, strict=True)
    return all(index >= 0 for a, index in pairs if isinstance(a, torch.Tensor) and a.requires_grad)


def gradient_arguments(op: Op, tensors: Sequence[Any], numbers: Sequence[Any], mask: list[bool]) -> tuple[Any, ...]:
    """Returns the arguments of the registered gradient."""
    return (*tensors, *numbers, mask) if len(op.gradient_groups) > 1 else (*tensors, *numbers)


def gradients(
    rules: Rules, settings: Settings, tensors: Sequence[Tensor | None], numbers: Sequence[Any], mask: list[bool]
) -> Results:
    """Computes the gradients that `mask` selects. `tensors` are the gradients of the results and the saved tensors.

    The backward runs under the settings of the forward: by kernels, by differentiable torch ops, or as registered op.
    """
    name, arguments = f"{rules.op.name}_backward", gradient_arguments(rules.op, tensors, numbers, mask)
    check_newest(rules.op)
    if _compiling():  # compiled autograd traces the backward
        return as_tuple(overload(name)(*arguments))
    with restored(settings):
        given = [tensor for tensor in tensors if tensor is not None]
        if torch.is_grad_enabled() or private.needs_dispatcher() or not all(map(_is_alone, given)):
            return as_tuple(overload(name)(*arguments))
        return rules.backward(*arguments)


def _is_alone(tensor: Tensor) -> bool:
    """Returns whether a tensor is a plain tensor, and no batch of gradients."""
    return is_plain(tensor) and not private.is_batched_gradient(tensor)


def as_tuple(results: Any) -> Results:
    """Returns the results of a registered op as a tuple."""
    return (results,) if isinstance(results, torch.Tensor) else results


def is_plain(tensor: Tensor) -> bool:
    """Returns whether the tensor has no subclass of torch.Tensor, except that it may be a parameter."""
    return type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter


def is_direct(*tensors: Tensor) -> bool:
    """Returns whether a call runs without PyTorch's dispatcher: on plain tensors, outside of modes and transforms."""
    return all(map(is_plain, tensors)) and not private.needs_dispatcher() and not private.function_modes()


def has_values(*tensors: Tensor) -> bool:
    """Returns whether values of tensors can be read: no subclass, transform, mode, tracer or compiler hides them.

    Example:
        >>> tridal.pytorch.has_values(torch.ones(2))
        True
    """
    hidden = _compiling() or private.transforms_active() or private.dispatch_modes() or private.tracing_state()
    return not hidden and all(map(is_plain, tensors))


def records_gradient(*tensors: Tensor | None) -> bool:
    """Returns whether autograd records a call: one of the tensors requires grad, and gradients are enabled.

    Inference mode records nothing, even if `enable_grad` is entered inside.
    """
    enabled = torch.is_grad_enabled() and (_compiling() or not torch.is_inference_mode_enabled())
    return enabled and any(tensor is not None and tensor.requires_grad for tensor in tensors)
