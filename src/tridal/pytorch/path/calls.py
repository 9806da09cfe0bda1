"""Calls of ops. A call that a call guard accepts uses the prepared call of an earlier one.

call -> call guard -> prepared call -> kernels   plain tensors
     -> a prepared call is made                  plain tensors, the first call of a kind
     -> registered op                            torch.compile, tensor subclasses, modes, transforms
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeAlias

import torch

from tridal.devices import registry
from tridal.devices.settings import current, restored
from tridal.ops.signature import Signature
from tridal.pytorch.bounded_cache import BoundedCache
from tridal.pytorch.device_context import device_context
from tridal.pytorch.path.guards import CallGuard, ServedRows, guard_call
from tridal.pytorch.path.nodes import (
    CallNode,
    OpNode,
    as_tuple,
    differentiable_results,
    gradient_arguments,
    gradients,
    has_gradient,
    is_direct,
    output_mask,
    records_gradient,
)
from tridal.pytorch.path.rules import OpRun, Results, Rules, check_newest, overload
from tridal.pytorch.path.run_source import Prepared
from tridal.pytorch.torch import private

Tensor = torch.Tensor
Key: TypeAlias = tuple[Any, ...]
_compiling = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
_VARIANTS = 64  # most of them are buckets of rows
_SIZES = (tuple, list, torch.Size)

_latest: dict[Callable[..., Any], PreparedCall] = {}
"""For each function, the prepared call that was used last. Making the key of a call takes as long as its guard."""
_calls: BoundedCache[Key, tuple[PreparedCall, ...]] = BoundedCache(4096)
"""The prepared calls, the latest first. Those of a key differ in what guards compare, such as an absent weight."""
registry.on_change(_calls.clear)
registry.on_change(_latest.clear)


class PendingCall(NamedTuple):
    """A call of a public function for which no call is prepared."""

    function: Callable[..., Any]
    keys: tuple[Key, Key]
    """The keys of a prepared call of this shape only, and of one of any number of rows."""
    tensors: tuple[Tensor | None, ...]
    options: tuple[Any, ...]
    sizes: Any
    results: int
    """How many of the op's results the function returns. These are the first ones."""


@functools.partial(private.skip_frames, inlined=True)
def call_prepared(
    function: Callable[..., Any], tensors: tuple[Any, ...], options: tuple[Any, ...], sizes: Any = (), results: int = 1
) -> Any:
    """Returns the result of a public function if a call is prepared for its arguments; a tuple if there are several.

    If not, returns a `PendingCall` to prepare one, or None if the call cannot be prepared.
    `sizes` is a sequence of ints. No option is compared by value with an option of another type: 1 is not True.
    """
    latest = _latest.get(function)
    if latest is not None and (sizes is latest.sizes or _same(sizes, latest.sizes)) and latest.guard(tensors, options):
        return latest.run(*tensors)[0] if latest.plain else latest(tensors)
    input = tensors[0]
    kind = type(input)
    if (kind is not Tensor and kind is not torch.nn.Parameter) or type(sizes) not in _SIZES:
        return None
    if input.is_nested or private.function_modes() or device_context(input.device).torch_computes:
        return None
    try:
        rest = (
            function, input.dtype, input.requires_grad, _grad_enabled(), results, type(sizes), *sizes, *options,
            *map(type, sizes), *map(type, options),
        )  # fmt: skip
        keys = (input.shape, *rest), (input.dim(), input.shape[-1:], *rest)
        prepared = (*_calls.get(keys[0], ()), *_calls.get(keys[1], ()))
    except (TypeError, RuntimeError):  # an argument cannot be hashed, or a nested tensor has no shape
        return None
    for found in prepared:
        if found.guard(tensors, options):
            _latest[function] = found
            if found not in _calls.get(found.key, ()):  # another thread has cleared both: the registry changed
                _latest.pop(function, None)
            return found(tensors)
    return PendingCall(function, keys, tensors, options, sizes, results)


def _same(sizes: Any, known: Any) -> bool:
    """Returns whether sizes have the types and the values of known ones.

    The types are compared first, because the comparison of a symbolic size with a number would specialise a trace.
    """
    return type(sizes) is type(known) and [*map(type, sizes)] == [*map(type, known)] and sizes == known


@functools.partial(private.skip_frames, inlined=True)
def call(rules: Rules, arguments: tuple[Any, ...], pending: PendingCall | None = None) -> Results:
    """Computes an op. The caller has checked the arguments, and has handled `__torch_function__`.

    A `PendingCall` is prepared. The op's tensors are those of the pending call, some of them cast to another dtype.
    """
    op = rules.op
    check_newest(op)
    if _compiling():
        return as_tuple(overload(op.name)(*arguments))
    tensors = [tensor for tensor in op.signature.tensors_of(arguments) if tensor is not None]
    if not is_direct(*tensors):
        return as_tuple(overload(op.name)(*arguments))
    recorded = op.differentiable_results > 0 and records_gradient(*tensors)
    if recorded and not has_gradient(op, arguments):
        return as_tuple(overload(op.name)(*arguments))  # autograd differentiates the op's reference
    fewer = {}
    if pending is not None:
        # A kernel without statistics may have another plan, and so another order of additions.
        if not recorded and not current().batch_invariant:
            fewer = {"results": pending.results}
        prepared = _prepare_pending(rules, arguments, pending, fewer)
        if prepared is not None:
            found = prepared(pending.tensors)
            return found if isinstance(found, tuple) else (found,)
    if recorded:
        return OpNode.apply(nullcontext, rules, rules.compute, *arguments)  # type: ignore[no-any-return]
    return rules.compute(*arguments, **fewer)


def _prepare_pending(
    rules: Rules, arguments: tuple[Any, ...], pending: PendingCall, fewer: dict[str, int]
) -> PreparedCall | None:
    """Returns the prepared call of a pending one, or None if it cannot be prepared."""
    input = pending.tensors[0]
    assert input is not None
    context = device_context(input.device)
    found = None if rules.prepare is None else rules.prepare(*arguments, **fewer)
    rows = None if found is None else served_rows(rules.op.signature, arguments, found)
    guard = None if found is None else guard_call(pending.tensors, pending.options, rows)
    if found is None or guard is None:
        return None
    call = PreparedCall(rules, arguments, pending, guard, found.run, pending.keys[rows is not None])
    if device_context(input.device) is context:
        _calls[call.key] = (call, *_calls.get(call.key, ())[: _VARIANTS - 1])
        _latest[pending.function] = call
        if device_context(input.device) is not context:  # another thread has changed the registry
            _latest.pop(pending.function, None)
    return call


def served_rows(signature: Signature, arguments: tuple[Any, ...], found: Prepared) -> ServedRows | None:
    """Returns the rows of the calls that a prepared function computes, or None if it computes these shapes only."""
    rows, main = signature.rows(arguments), signature.tensors.index(signature.main)
    if found.served is None or arguments[signature.main].dim() == rows.dims:
        return None
    given = signature.roles(signature.named(arguments))
    roles = tuple(str(given[index]) for index in signature.tensors)
    return ServedRows(*found.served, found.divisible, rows.dims, main, roles)


class PreparedCall:
    """A prepared call: computes an op for all tensors with the same description."""

    __slots__ = (
        "absent", "arguments", "backward", "casts", "differentiable", "fills_gradients", "guard", "inputs", "key",
        "mask", "plain", "recorded", "results", "rules", "run", "saved", "saved_numbers", "settings", "sizes",
    )  # fmt: skip

    def __init__(
        self, rules: Rules, arguments: tuple[Any, ...], pending: PendingCall, guard: CallGuard, run: OpRun, key: Key
    ) -> None:
        op, self.key = rules.op, key
        tensors, index = op.signature.tensors_of(arguments), op.tensor_gradient_index
        self.rules, self.guard, self.run, self.results = rules, guard, run, pending.results
        self.arguments = op.signature.numbers_of(arguments)
        self.fills_gradients = op.fills_gradients
        self.settings = current()
        self.sizes = list(pending.sizes) if type(pending.sizes) is list else pending.sizes  # the caller's may change
        pairs = list(zip(tensors, pending.tensors, strict=True))
        casts = [None if t is None or given is None or t.dtype is given.dtype else t.dtype for t, given in pairs]
        self.casts = casts if any(casts) else None
        needed = [op.differentiable_results > 0 and records_gradient(tensor) for tensor in tensors]
        self.recorded = any(needed)
        self.plain = self.casts is None and not self.recorded and self.results == 1
        self.mask = output_mask(index, needed)
        self.differentiable = differentiable_results(op, self.mask)
        given = zip(tensors, needed, index, strict=True)
        self.inputs = [(p, t.dtype) if t is not None and need else (-1, None) for t, need, p in given]
        self.absent = (None,) * (op.differentiable_results - self.results)
        self.saved_numbers: Sequence[Any] = ()
        self.saved: Callable[..., Sequence[Tensor | None]] = self._save
        """saved(tensors, results) returns the tensors that the gradient needs."""
        self.backward: _Backward | None = None

    @functools.partial(private.skip_frames, inlined=True)
    def __call__(self, tensors: Sequence[Tensor | None]) -> Any:
        """Returns the result for tensors that the call guard accepts; a tuple if there are several."""
        if self.casts is not None:
            pairs = zip(tensors, self.casts, strict=True)
            tensors = [t if t is None or dtype is None else t.to(dtype) for t, dtype in pairs]
        if self.recorded:
            return CallNode.apply(self, *tensors)
        results = self.run(*tensors)
        return results[0] if self.results == 1 else results[: self.results]

    def _save(self, tensors: Sequence[Tensor | None], results: Results) -> Sequence[Tensor | None]:
        """Returns the tensors that the gradient needs. Prepares `saved`, if these are among the given ones."""
        arguments = self.rules.op.signature.joined(tuple(tensors), self.arguments)
        saved, self.saved_numbers = self.rules.op.save(arguments, results)
        places = {id(tensor): f"tensors[{index}]" for index, tensor in enumerate(tensors)}
        places |= {id(tensor): f"results[{index}]" for index, tensor in enumerate(results)}
        if all(id(tensor) in places for tensor in saved):
            self.saved = eval(f"lambda tensors, results: ({''.join(f'{places[id(t)]}, ' for t in saved)})")
        return saved

    def gradients(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Returns the gradients of the op's tensors. `tensors` are those of the results and the saved tensors."""
        backward = self.backward
        if backward is None or _compiling() or not backward.guard(tensors):
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
        if any(map(private.is_batched_gradient, given)):
            return
        with restored(self.settings):
            arguments = gradient_arguments(self.rules.op, tensors, self.saved_numbers, self.mask)
            found = prepare(*arguments)
        if found is not None:
            guard = guard_call(tensors, rows=served_rows(self.rules.op.gradient_signature, arguments, found))
            self.backward = None if guard is None else _Backward(guard, found.run)


class _Backward(NamedTuple):
    """A prepared backward."""

    guard: CallGuard
    run: OpRun
    """run(*gradients, *saved tensors) returns the gradients that the call needs."""
