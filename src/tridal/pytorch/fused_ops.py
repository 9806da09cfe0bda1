"""Ops of several tensors in PyTorch: their registered ops, their autograd nodes and the public path of a call.

call -> compute -> kernels             plain tensors, through an autograd node if a gradient is recorded
     -> registered op                  torch.compile, tensor subclasses, modes
     -> the op's reference             torch.func transforms, forward-mode AD
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from tridal.devices.settings import current, restored
from tridal.ops.fused_op import FusedOp
from tridal.pytorch import private
from tridal.pytorch.call_records import RECORDERS, record_torch
from tridal.pytorch.op_call import overload
from tridal.pytorch.registered_ops import LIBRARY, TAGS, has_tangent

Results: TypeAlias = tuple[torch.Tensor | None, ...]
_compiling = torch.compiler.is_dynamo_compiling
DEFINED: dict[str, Rules] = {}


@dataclass(frozen=True, eq=False)
class Rules:
    """The functions that compute an op of several tensors. A result is None if the arguments do not ask for it."""

    op: FusedOp
    compute: Callable[..., Results]
    """compute(*arguments): the results for plain tensors, by kernels, or by torch where no kernel computes them."""
    fake: Callable[..., Results]
    """fake(*arguments) checks the arguments. It returns empty tensors with the shapes and dtypes of the results."""
    save: Callable[[tuple[Any, ...], Results], tuple[Any, ...]]
    """save(arguments, results): the arguments of the backward between the gradients and `output_mask`."""
    backward: Callable[..., Results]
    """backward(*gradients, *saved, output_mask), by kernels, or by torch where no kernel computes them."""
    fake_backward: Callable[..., Results]


def define(rules: Rules) -> None:
    """Registers an op of several tensors and its gradient."""
    op = rules.op
    DEFINED[op.name] = rules
    _register(op.name, op.schema, rules.compute, rules.fake, op.reference, rules)
    _register(f"{op.name}_backward", op.backward_schema, rules.backward, rules.fake_backward, op.gradient, None)


def call(rules: Rules, *arguments: Any) -> Results:
    """Computes an op. The caller has checked the arguments, and has handled `__torch_function__`."""
    if _compiling():
        return overload(rules.op.name)(*arguments)  # type: ignore[no-any-return]
    if private.transforms_active():
        return rules.op.reference(*arguments)
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    if not is_direct(*tensors):
        return overload(rules.op.name)(*arguments)  # type: ignore[no-any-return]
    if records_gradient(*tensors):
        return FusedNode.apply(nullcontext, rules, rules.compute, *arguments)  # type: ignore[no-any-return]
    return rules.compute(*arguments)


def records_gradient(*tensors: torch.Tensor | None) -> bool:
    """Returns whether autograd records a call: one of the tensors requires grad, and gradients are enabled.

    Inference mode records nothing, even if `enable_grad` is entered inside.
    """
    enabled = torch.is_grad_enabled() and (_compiling() or not torch.is_inference_mode_enabled())
    return enabled and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def is_direct(*tensors: torch.Tensor) -> bool:
    """Returns whether a call runs without PyTorch's dispatcher: on plain tensors, outside of modes and transforms."""
    return all(map(_is_plain, tensors)) and not private.needs_dispatcher() and not private.function_modes()


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter


class FusedNode(private.Node):
    """The autograd node of all ops of several tensors: apply(redispatch, rules, compute, *arguments)."""

    @staticmethod
    def forward(ctx: Any, redispatch: Any, rules: Rules, compute: Callable[..., Results], *arguments: Any) -> Results:
        """Computes the op below autograd and saves what its gradient needs."""
        with redispatch():
            results = compute(*arguments)
        saved = rules.save(arguments, results)
        ctx.save_for_backward(*(value if isinstance(value, torch.Tensor) else None for value in saved))
        ctx.numbers = [None if isinstance(value, torch.Tensor) else value for value in saved]
        ctx.dtypes = [argument.dtype if isinstance(argument, torch.Tensor) else None for argument in arguments]
        ctx.rules, ctx.settings = rules, current()
        ctx.set_materialize_grads(False)
        others = results[rules.op.differentiable :]
        ctx.mark_non_differentiable(*(result for result in others if result is not None))
        return results

    @staticmethod
    @private.skip_frames
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradients of the arguments that need one."""
        op, needed = ctx.rules.op, ctx.needs_input_grad[3:]
        grads = grads[: op.differentiable]
        if all(grad is None for grad in grads):
            return (None,) * (3 + len(needed))
        saved = [n if t is None else t for t, n in zip(ctx.saved_tensors, ctx.numbers, strict=True)]
        mask = [False] * (max(op.inputs) + 1)
        for need, position in zip(needed, op.inputs, strict=True):
            mask[position] |= need and position >= 0
        if _compiling():  # compiled autograd traces the backward
            results = overload(f"{op.name}_backward")(*grads, *saved, mask)
        else:
            with restored(ctx.settings):
                results = _backward_of(ctx.rules, grads, saved)(*grads, *saved, mask)
        given = zip(needed, op.inputs, ctx.dtypes, strict=True)
        found = [results[p].to(dtype) if need and p >= 0 else None for need, p, dtype in given]
        return (None, None, None, *found)


def _backward_of(rules: Rules, grads: tuple[torch.Tensor | None, ...], saved: list[Any]) -> Callable[..., Results]:
    """Returns the function that computes this backward: kernels, differentiable torch ops, or the registered op."""
    if torch.is_grad_enabled():  # create_graph=True
        return rules.op.gradient
    tensors = [value for value in (*grads, *saved) if isinstance(value, torch.Tensor)]
    if private.needs_dispatcher() or any(not _is_plain(t) or private.is_batched_gradient(t) for t in tensors):
        return overload(f"{rules.op.name}_backward")  # type: ignore[no-any-return]
    return rules.backward


def _register(
    name: str,
    schema: str,
    compute: Callable[..., Results],
    fake: Callable[..., Results],
    by_torch: Callable[..., Results],
    rules: Rules | None,
) -> None:
    """Registers one op. Without `rules`, autograd differentiates `by_torch`."""

    def filled(results: Results, arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        like = next(argument for argument in arguments if isinstance(argument, torch.Tensor))
        return tuple(like.new_empty(0) if result is None else result for result in results)

    @private.skip_frames
    def kernel(*arguments: Any) -> tuple[torch.Tensor, ...]:
        return filled(compute(*arguments), arguments)

    def fake_kernel(*arguments: Any) -> tuple[torch.Tensor, ...]:
        return filled(fake(*arguments), arguments)

    @private.skip_frames
    def autograd(*arguments: Any) -> tuple[torch.Tensor, ...]:
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        differentiated = records_gradient(*tensors)
        by_node = rules is not None and private.HAS_NODES and not private.transforms_active()
        if has_tangent(*tensors) or (differentiated and not by_node):
            if RECORDERS:
                record_torch(name, tensors[0], "higher-order, forward-mode and transformed derivatives use torch's ops")
            return filled(by_torch(*arguments), arguments)
        if differentiated:
            return private.apply_node(FusedNode, rules, overload(name), *arguments)  # type: ignore[no-any-return]
        with private.below_autograd():
            return overload(name)(*arguments)  # type: ignore[no-any-return]

    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        # `torch.vmap` cannot be used here: functorch's front mode is off in a rule.
        def sample(index: int) -> tuple[torch.Tensor, ...]:
            given = zip(arguments, in_dims, strict=True)
            values = tuple(a.select(axis, index) if isinstance(axis, int) else a for a, axis in given)
            return filled(by_torch(*values), values)

        if info.batch_size == 0:
            arguments = tuple(
                a.new_zeros((*a.shape[:axis], 1, *a.shape[axis + 1 :])) if isinstance(axis, int) else a
                for a, axis in zip(arguments, in_dims, strict=True)
            )
            results = sample(0)
            return tuple(result.new_empty((0, *result.shape)) for result in results), (0,) * len(results)
        rows = [sample(index) for index in range(info.batch_size)]
        return tuple(map(torch.stack, zip(*rows, strict=True))), (0,) * len(rows[0])

    LIBRARY.define(f"{name}{schema}", tags=TAGS)
    LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    LIBRARY.impl(name, autograd, "Autograd")
    torch.library.register_fake(f"tridal::{name}", fake_kernel, lib=LIBRARY)
    torch.library.register_vmap(f"tridal::{name}", vmap, lib=LIBRARY)
