"""Calls of ops of several tensors. A call that a call guard accepts reuses the prepared call of an earlier one.

call -> call guard -> prepared call -> kernels   plain tensors
     -> compute -> kernels                       plain tensors, the first calls of a kind
     -> registered op                            torch.compile, tensor subclasses, modes
     -> the op's reference                       torch.func transforms, forward-mode AD
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeAlias

import torch

from tridal.devices import registry
from tridal.devices.settings import current, restored
from tridal.pytorch import private
from tridal.pytorch.bounded_cache import BoundedCache
from tridal.pytorch.call_guards import TensorsGuard, guard_tensors
from tridal.pytorch.device_context import device_context
from tridal.pytorch.fused_ops import (
    FusedNode,
    FusedRun,
    Results,
    Rules,
    gradients,
    is_direct,
    output_mask,
    records_gradient,
)
from tridal.pytorch.op_call import overload

Tensor = torch.Tensor
Key: TypeAlias = tuple[Any, ...]
_compiling = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
_function_modes = private.function_modes
_VARIANTS = 8
_SIZES = (tuple, list, torch.Size)

_latest: dict[Callable[..., Any], FusedCall] = {}
"""For each function, the prepared call that was used last. Making the key of a call takes as long as its guard."""
_calls: BoundedCache[Key, tuple[FusedCall, ...]] = BoundedCache(1024)
"""The prepared calls, the latest first. Those of a key differ in what guards compare, such as an absent weight.

An empty tuple marks the key of a call that was computed once: the next one is prepared.
"""
registry.on_change(_calls.clear)
registry.on_change(_latest.clear)


class Request(NamedTuple):
    """A call of a public function, as its caller made it."""

    key: Key
    tensors: tuple[Tensor | None, ...]
    options: tuple[Any, ...]
    sizes: Any
    results: int
    """How many of the op's results the function returns. These are the first ones."""


def find_call(
    function: Callable[..., Any], tensors: tuple[Any, ...], options: tuple[Any, ...], sizes: Any, results: int
) -> FusedCall | Request | None:
    """Returns the prepared call for the arguments of a public function, else a `Request` to prepare it, else None.

    `sizes` is a sequence of ints. No option is compared by value with an option of another type: 1 is not True.
    """
    latest = _latest.get(function)
    if (
        latest is not None
        and (sizes is latest.sizes or _same(sizes, latest.sizes))
        and all(map(operator.is_, options, latest.options))
        and current() is latest.settings
        and latest.call_guard(tensors)
    ):
        return latest
    input = tensors[0]
    kind = type(input)
    if _function_modes() or (kind is not Tensor and kind is not torch.nn.Parameter) or type(sizes) not in _SIZES:
        return None
    key = (
        function, input.shape, input.dtype, input.requires_grad, _grad_enabled(), results, type(sizes), *sizes,
        *options, *map(type, sizes), *map(type, options),
    )  # fmt: skip
    try:
        prepared = _calls.get(key, ())
    except TypeError:  # an argument cannot be hashed
        return None
    for found in prepared:
        if current() is found.settings and found.call_guard(tensors):
            _latest[function] = found
            if _calls.get(key) is not prepared:  # another thread has cleared both, because the registry changed
                _latest.pop(function, None)
            return found
    return Request(key, tensors, options, sizes, results)


def _same(sizes: Any, known: Any) -> bool:
    """Returns whether sizes have the types and the values of known ones.

    The types are compared first, because the comparison of a symbolic size with a number would specialise a trace.
    """
    return type(sizes) is type(known) and [*map(type, sizes)] == [*map(type, known)] and sizes == known


def call(rules: Rules, arguments: tuple[Any, ...], request: FusedCall | Request | None = None) -> Results:
    """Computes an op. The caller has checked the arguments, and has handled `__torch_function__`.

    With a `Request`, the second call with its key is prepared. The op's tensors are those of the request, some of them
    cast to another dtype.
    """
    if _compiling():
        return overload(rules.op.name)(*arguments)  # type: ignore[no-any-return]
    if private.transforms_active():
        return rules.op.reference(*arguments)
    tensors = [tensor for tensor in arguments[: rules.op.tensor_count] if tensor is not None]
    if not is_direct(*tensors):
        return overload(rules.op.name)(*arguments)  # type: ignore[no-any-return]
    recorded = records_gradient(*tensors)
    needed = {}
    if isinstance(request, Request):
        # A kernel without statistics may have another plan, and so another order of additions.
        if not recorded and not current().batch_invariant:
            needed = {"results": request.results}
        _keep(rules, arguments, request, needed)
    if recorded:
        return FusedNode.apply(nullcontext, rules, rules.compute, *arguments)  # type: ignore[no-any-return]
    return rules.compute(*arguments, **needed)


def _keep(rules: Rules, arguments: tuple[Any, ...], request: Request, needed: dict[str, int]) -> None:
    """Prepares a call if its key has occurred before."""
    if request.key not in _calls:
        _calls[request.key] = ()
        return
    count = rules.op.tensor_count
    context = device_context(request.tensors[0].device)  # type: ignore[union-attr]
    guard = guard_tensors(request.tensors)
    run = None if guard is None or rules.prepare is None else rules.prepare(*arguments, **needed)
    if guard is None or run is None:
        return
    found = FusedCall(rules, arguments[:count], arguments[count:], request, guard, run)
    if device_context(request.tensors[0].device) is context:  # type: ignore[union-attr]
        _calls[request.key] = (found, *_calls.get(request.key, ())[: _VARIANTS - 1])


class FusedCall:
    """A prepared call: computes an op of several tensors for all tensors with the same description."""

    __slots__ = (
        "absent", "backward", "call_guard", "casts", "inputs", "mask", "not_differentiable", "numbers", "options",
        "recorded", "results", "rules", "run", "saved_numbers", "settings", "sizes",
    )  # fmt: skip

    def __init__(
        self, rules: Rules, tensors: Sequence[Tensor | None], numbers: tuple[Any, ...], request: Request,
        guard: TensorsGuard, run: FusedRun,
    ) -> None:  # fmt: skip
        self.rules, self.numbers, self.call_guard, self.run, self.results = rules, numbers, guard, run, request.results
        self.settings, self.options = current(), request.options
        self.sizes = list(request.sizes) if type(request.sizes) is list else request.sizes  # the caller's may change
        pairs = list(zip(tensors, request.tensors, strict=True))
        casts = [None if t is None or given is None or t.dtype is given.dtype else t.dtype for t, given in pairs]
        self.casts = casts if any(casts) else None
        needed = [records_gradient(tensor) for tensor in tensors]
        self.recorded = any(needed)
        self.mask = output_mask(rules.op, needed)
        self.not_differentiable = self.results > 1 and not self.mask[0]
        given = zip(tensors, needed, rules.op.gradient_index, strict=False)
        self.inputs = [(p, t.dtype) if t is not None and need else (-1, None) for t, need, p in given]
        self.absent = (None,) * (rules.op.differentiable_results - self.results)
        self.saved_numbers: Sequence[Any] = ()
        self.backward: _Backward | None = None

    def __call__(self, tensors: Sequence[Tensor | None]) -> Any:
        """Returns the result for tensors that the call guard accepts; a tuple if there are several."""
        if self.casts is not None:
            pairs = zip(tensors, self.casts, strict=True)
            tensors = [t if t is None or dtype is None else t.to(dtype) for t, dtype in pairs]
        if self.recorded:
            return FusedCallNode.apply(self, *tensors)
        results = self.run(*tensors)
        return results[0] if self.results == 1 else results[: self.results]

    def gradients(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Returns the gradients of the op's tensors. `tensors` are those of the results and the saved tensors."""
        backward = self.backward
        if backward is None or _compiling() or not backward.call_guard(tensors):
            results = gradients(self.rules, self.settings, tensors, self.saved_numbers, self.mask)
            self._prepare_backward(tensors)
        else:
            results = backward.run(*tensors)
        return [
            None if p < 0 or (t := results[p]) is None else t if t.dtype is dtype else t.to(dtype)
            for p, dtype in self.inputs
        ]

    def _prepare_backward(self, tensors: Sequence[Tensor | None]) -> None:
        prepare, given = self.rules.prepare_backward, [tensor for tensor in tensors if tensor is not None]
        if prepare is None or _compiling() or _grad_enabled() or not is_direct(*given):
            return
        if any(map(private.is_batched_gradient, given)) or (guard := guard_tensors(tensors)) is None:
            return
        with restored(self.settings):
            run = prepare(*tensors, *self.saved_numbers, self.mask)
        self.backward = None if run is None else _Backward(guard, run)


class _Backward(NamedTuple):
    """A prepared backward."""

    call_guard: TensorsGuard
    run: FusedRun
    """run(*gradients, *saved tensors) returns the gradients that the call needs."""


class FusedCallNode(private.Node):
    """The autograd node of prepared calls: apply(call, *tensors). It returns only the results of the function."""

    @staticmethod
    def forward(ctx: Any, call: FusedCall, *tensors: Tensor | None) -> Any:
        """Runs the prepared call and saves what its gradient needs."""
        count = call.results
        results = call.run(*tensors)
        saved, call.saved_numbers = call.rules.save((*tensors, *call.numbers), results)
        ctx.save_for_backward(*saved)
        ctx.call = call
        ctx.set_materialize_grads(False)  # otherwise, an undefined gradient would become zeros
        if count == 1:
            return results[0]
        if call.not_differentiable:
            ctx.mark_non_differentiable(*results[1:count])
        return results[:count]

    @staticmethod
    @private.skip_frames
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """Returns the gradients of the tensors that need one."""
        call = ctx.call
        if all(grad is None for grad in grads):
            return (None,) * (1 + len(call.inputs))
        return None, *call.gradients((*grads, *call.absent, *ctx.saved_tensors))
