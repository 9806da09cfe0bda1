"""`Call` computes all tensors with the same key, in a forward or a backward. `CALLS` is the one dict of all calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from tridal.devices import registry
from tridal.devices.settings import current
from tridal.ops.op import Op
from tridal.ops.signature import Arguments
from tridal.pytorch.device_context import DeviceContext, device_context
from tridal.pytorch.path.generated import generated
from tridal.pytorch.path.keys import key_function, most_rows
from tridal.pytorch.path.run_source import AddressLaunch
from tridal.pytorch.path.shard_keys import gradient_key, is_sharded
from tridal.pytorch.path.state import records_gradient

Tensor = torch.Tensor
Results: TypeAlias = tuple[Tensor | None, ...]
Key: TypeAlias = tuple[Any, ...]


CALLS: dict[Key, Call] = {}
"""The calls by their keys, see `tridal.pytorch.path.keys`."""
CAPACITY = 4096
"""All calls are dropped when there are so many and another one is stored."""
registry.on_change(CALLS.clear)


class Call:
    """Computes all tensors with the same key. It holds no tensor of the call that it was made for."""

    __slots__ = (
        "absent", "any_rows", "backward_key", "by_address", "by_kernels", "compute", "constant", "inputs", "mask",
        "numbers", "op", "overwrites", "results", "run", "saved", "saved_numbers", "settings",
    )  # fmt: skip

    run: Callable[..., Any]
    """run(*tensors) returns a tuple of the results of a registered op, or of its gradient; None for those that are not
    needed. If the function returns one result, and autograd does not record the call, it returns this result."""
    any_rows: bool
    """Whether it computes all numbers of rows that have the same key."""
    compute: Callable[..., Any]
    """compute(*tensors) returns what the public function returns, and records the call in autograd if it has to."""

    by_kernels: bool
    """Whether kernels compute it. If not, torch does."""

    by_address: AddressLaunch | None
    """The launch of a kernel that needs only addresses, and does nothing else."""

    def __init__(
        self, run: Callable[..., Any], any_rows: bool = False, by_kernels: bool = True,
        by_address: AddressLaunch | None = None,
    ) -> None:  # fmt: skip
        self.run = self.compute = run
        self.any_rows, self.by_kernels, self.by_address = any_rows, by_kernels, by_address

    def add_gradient(self, op: Op, arguments: Arguments, results: int, overwrites: bool = False) -> None:
        """Sets the attributes that the autograd node reads.

        Args:
            arguments: those of the registered op.
            results: how many results the function returns. These are the first ones.
            overwrites: whether a backward that is computed once may overwrite the saved tensors.
        """
        tensors = arguments.tensors
        index = [op.gradient_index[position] for position in op.signature.tensors]
        self.op, self.results, self.overwrites, self.settings = op, results, overwrites, current()
        self.numbers = arguments.numbers
        needed = [op.differentiable_results > 0 and records_gradient(tensor) for tensor in tensors]
        self.mask = _output_mask(index, needed)
        self.constant = _constant_results(op, self.mask, results)
        pairs = zip(tensors, needed, index, strict=True)
        self.inputs = [(p, t.dtype) if t is not None and need else (-1, None) for t, need, p in pairs]
        self.absent = (None,) * (op.differentiable_results - results)
        self.saved_numbers: tuple[Any, ...] = ()
        """The arguments of the gradient after its tensors."""
        self.saved: Callable[..., Sequence[Tensor | None]] = self._save
        """saved(tensors, results) returns the tensors that the gradient needs. The first call may replace it."""
        self.backward_key: Callable[..., Key | None] = (
            gradient_key if is_sharded(*tensors) else key_function(op.gradient_signature, op.differentiable_results)
        )
        """backward_key(call, *gradients, *saved tensors, *saved numbers) is the key of a backward."""

    def _save(self, tensors: Sequence[Tensor | None], results: Results) -> Sequence[Tensor | None]:
        """Returns the tensors that the gradient needs. Replaces `saved` by a faster function if these are among the
        given ones, and are no views of them."""
        distinct: list[Any] = [t if t is None else t.view_as(t) for t in tensors]  # one tensor may be given twice
        found, numbers = self.op.save(self._arguments(distinct), results)
        self.saved_numbers = (*numbers, *[self.mask] * (len(self.op.gradient_groups) > 1))
        # Autograd saves no tensor of inference mode, so `Op.save` copies them.
        place = "t.clone() if (t := tensors[{}]).is_inference() else t"
        places = {id(tensor): place.format(index) for index, tensor in enumerate(distinct) if tensor is not None}
        places |= {id(tensor): f"results[{index}]" for index, tensor in enumerate(results) if tensor is not None}
        places[id(None)] = "None"
        if all(id(tensor) in places for tensor in found):
            text = f"return ({''.join(f'({places[id(t)]}), ' for t in found)})"
            self.saved = generated("saved", "tensors, results", [text], {})
            return self.saved(tensors, results)  # type: ignore[no-any-return]
        return self.op.save(self._arguments(tensors), results)[0]

    def _arguments(self, tensors: Sequence[Tensor | None]) -> Arguments:
        return Arguments.of(self.op.signature, tensors, self.numbers)


def store(key: Key, call: Call, context: DeviceContext) -> None:
    """Stores a call with its key. `context` is the one that the call was made for.

    A call is not stored if it computes only some numbers of rows with this key, or if another thread has changed the
    registry since `context` was looked up.
    """
    if most_rows(key) is not None and not call.any_rows:
        return
    if len(CALLS) >= CAPACITY:
        CALLS.clear()
    if device_context(context.device) is context:
        CALLS[key] = call
        if device_context(context.device) is not context:
            CALLS.pop(key, None)


def _output_mask(gradient_index: Sequence[int], needed: Sequence[bool]) -> list[bool]:
    """Returns the `output_mask` of a backward. `needed` tells for each tensor of the op if it needs a gradient."""
    mask = [False] * (max(gradient_index) + 1)
    for need, position in zip(needed, gradient_index, strict=True):
        if need and position >= 0:
            mask[position] = True
    return mask


def _constant_results(op: Op, mask: Sequence[bool], count: int) -> list[int]:
    """Returns which of the first results do not depend on the tensors whose gradients `mask` selects."""
    depends = op.fills_gradients or any(mask[:1]) or op.arguments[0].role == "whole"
    differentiable = op.differentiable_results if depends else 1
    needed = {name for names, need in zip(op.gradient_groups, mask, strict=False) if need for name in names}
    sources = [result.depends_on for result in op.results[:count]]
    return [i for i, names in enumerate(sources) if i >= differentiable or (names and needed.isdisjoint(names))]
