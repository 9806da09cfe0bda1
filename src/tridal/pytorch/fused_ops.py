"""Ops of several tensors in PyTorch: the functions that compute them, their registered ops and their autograd node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from tridal.devices.settings import Settings, current, restored
from tridal.ops.fused_op import FusedOp
from tridal.pytorch import private
from tridal.pytorch.call_records import RECORDERS, record_torch
from tridal.pytorch.op_call import overload
from tridal.pytorch.registered_ops import LIBRARY, TAGS, has_tangent

Results: TypeAlias = tuple[torch.Tensor | None, ...]
FusedRun: TypeAlias = Callable[..., Results]
_compiling = torch.compiler.is_dynamo_compiling
DEFINED: dict[str, Rules] = {}


@dataclass(frozen=True, eq=False)
class Rules:
    """The functions that compute an op of several tensors. A result is None if the arguments do not ask for it."""

    op: FusedOp
    compute: Callable[..., Results]
    """compute(*arguments): the results for plain tensors, by kernels, or by torch where no kernel computes them.
    compute(*arguments, results=n) returns at least the first n of them. Only ops with `prepare` have this option."""
    fake: Callable[..., Results]
    """fake(*arguments) checks the arguments. It returns empty tensors with the shapes and dtypes of the results."""
    save: Callable[[tuple[Any, ...], Results], tuple[Results, tuple[Any, ...]]]
    """save(arguments, results) returns two tuples: the tensors, and the other arguments, that the backward gets between
    the gradients of the results and `output_mask`."""
    backward: Callable[..., Results]
    """backward(*gradients, *saved, output_mask), by kernels, or by torch where no kernel computes them."""
    fake_backward: Callable[..., Results]
    prepare: Callable[..., FusedRun | None] | None = None
    """prepare(*arguments, results=None) returns run(*tensors), which is `compute` for all tensors with the same
    description. It is None if no kernel computes them, and `prepare` is None if calls are not worth a preparation."""
    prepare_backward: Callable[..., FusedRun | None] | None = None
    """prepare_backward(*gradients, *saved, output_mask) returns run(*gradients, *saved tensors), as `prepare`."""


def define(rules: Rules) -> None:
    """Registers an op of several tensors and its gradient."""
    op = rules.op
    DEFINED[op.name] = rules
    _register(op.name, op.schema, rules.compute, rules.fake, op.reference, rules)
    _register(f"{op.name}_backward", op.backward_schema, rules.backward, rules.fake_backward, op.gradient, None)


def by_kernels(prepare: Callable[..., FusedRun | None], by_torch: FusedRun, tensors: int) -> FusedRun:
    """Returns f(*arguments), which computes an op, or its gradient, with kernels, and with `by_torch` if there is none.

    The first `tensors` arguments are tensors or None. Options of `prepare` are passed to it.
    """

    def compute(*arguments: Any, **options: int) -> Results:
        run = prepare(*arguments, **options)
        return by_torch(*arguments) if run is None else run(*arguments[:tensors])

    return compute


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
        saved, ctx.numbers = rules.save(arguments, results)
        ctx.save_for_backward(*saved)
        ctx.dtypes = [argument.dtype if isinstance(argument, torch.Tensor) else None for argument in arguments]
        ctx.rules, ctx.settings = rules, current()
        ctx.set_materialize_grads(False)
        # All results after the first depend only on the tensors whose gradient is the first.
        depends = any(ctx.needs_input_grad[3 + index] for index, p in enumerate(rules.op.gradient_index) if p == 0)
        others = results[rules.op.differentiable_results if depends else 1 :]
        ctx.mark_non_differentiable(*(result for result in others if result is not None))
        return results

    @staticmethod
    @private.skip_frames
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradients of the arguments that need one."""
        op, needed = ctx.rules.op, ctx.needs_input_grad[3:]
        grads = grads[: op.differentiable_results]
        if all(grad is None for grad in grads):
            return (None,) * (3 + len(needed))
        mask = output_mask(op, needed)
        results = gradients(ctx.rules, ctx.settings, (*grads, *ctx.saved_tensors), ctx.numbers, mask)
        found = [results[p] if need and p >= 0 else None for need, p in zip(needed, op.gradient_index, strict=True)]
        pairs = zip(found, ctx.dtypes, strict=True)
        return (None, None, None, *(grad if grad is None else grad.to(dtype) for grad, dtype in pairs))


def output_mask(op: FusedOp, needed: Sequence[bool]) -> list[bool]:
    """Returns the `output_mask` of a backward. `needed` tells for each argument of the op if it needs a gradient."""
    mask = [False] * (max(op.gradient_index) + 1)
    for need, position in zip(needed, op.gradient_index, strict=False):
        if need and position >= 0:
            mask[position] = True
    return mask


def gradients(
    rules: Rules, settings: Settings, tensors: Sequence[torch.Tensor | None], numbers: Sequence[Any], mask: list[bool]
) -> Results:
    """Computes the gradients that `mask` selects. `tensors` are the gradients of the results and the saved tensors.

    The backward runs under the settings of the forward: by kernels, by differentiable torch ops, or as registered op.
    """
    name = f"{rules.op.name}_backward"
    if _compiling():  # compiled autograd traces the backward
        return overload(name)(*tensors, *numbers, mask)  # type: ignore[no-any-return]
    with restored(settings):
        if torch.is_grad_enabled():  # create_graph=True
            return rules.op.gradient(*tensors, *numbers, mask)
        given = [tensor for tensor in tensors if tensor is not None]
        if private.needs_dispatcher() or any(not _is_plain(t) or private.is_batched_gradient(t) for t in given):
            return overload(name)(*tensors, *numbers, mask)  # type: ignore[no-any-return]
        return rules.backward(*tensors, *numbers, mask)


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
