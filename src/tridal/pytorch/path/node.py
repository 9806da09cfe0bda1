"""The autograd node of all calls. Kernels compute its backward.

For higher-order and forward-mode derivatives, torch differentiates the op's reference or gradient. The node derives
from `private.Node`, which costs a quarter less than torch.autograd.Function. It does not support torch.func transforms:
it runs where no transform is active, or in `private.single_level`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tridal.devices.settings import restored
from tridal.ops.signature import Arguments
from tridal.pytorch.path.call import CALLS, Call, Key, Results
from tridal.pytorch.path.defined import as_tuple, check_newest, overload
from tridal.pytorch.path.keys import NO_KEY
from tridal.pytorch.path.op_calls import new_call
from tridal.pytorch.path.state import is_plain
from tridal.pytorch.torch import private

Tensor = torch.Tensor
_compiling = torch.compiler.is_dynamo_compiling


class CallNode(private.Node):
    """The node of a call: apply(call, *tensors). It returns the results of the function."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor | None) -> Any:
        """Runs the call and saves what its gradient needs."""
        count = call.results
        results = call.run(*tensors)
        ctx.save_for_backward(*call.saved(tensors, results))
        ctx.call = call
        ctx.set_materialize_grads(call.op.fills_gradients)
        if count == 1:
            return results[0]
        if call.constant:
            ctx.mark_non_differentiable(*(t for i in call.constant if (t := results[i]) is not None))
        return results[:count]

    @staticmethod
    @private.skip_frames
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """Returns the gradients of the tensors that need one."""
        call = ctx.call
        if grads[0] is None and all(grad is None for grad in grads):
            return (None,) * (1 + len(call.inputs))
        tensors = (*grads[: call.op.differentiable_results], *call.absent, *ctx.saved_tensors)
        results = _gradients(call, tensors)
        return None, *(
            None if p < 0 or (t := results[p]) is None else t if t.dtype is dtype else t.to(dtype)
            for p, dtype in call.inputs
        )


def _gradients(call: Call, tensors: Sequence[Tensor | None]) -> Results:
    """Returns the results of the gradient. `tensors` are the gradients of the results and the saved tensors.

    Uses the settings of the forward.
    """
    key = found = None
    if call.op.prepares and not _compiling():
        try:
            key = call.backward_key(call, *tensors, *call.saved_numbers)
            found = None if key is None else CALLS.get(key)
        except NO_KEY:
            key = None
    return _other_gradients(call, tensors, key) if found is None else found.run(*tensors)


def _other_gradients(call: Call, tensors: Sequence[Tensor | None], key: Key | None) -> Results:
    """Computes a gradient whose key is None or new: by a new call, which is stored, or by the registered op."""
    op = call.op
    arguments = Arguments(op.gradient_signature, (*tensors, *call.saved_numbers))
    check_newest(op)
    if _compiling():  # compiled autograd traces the backward
        return _registered_gradients(arguments)
    given = [tensor for tensor in tensors if tensor is not None]
    with restored(call.settings):
        alone = key is not None or all(is_plain(tensor) and not private.is_batched_gradient(tensor) for tensor in given)
        if torch.is_grad_enabled() or private.needs_dispatcher() or not alone:
            return _registered_gradients(arguments)
        dtypes = {p: dtype for p, dtype in call.inputs if dtype}
        made = new_call(op, arguments, key, call.overwrites and not private.keeps_graph(), dtypes)
        return made.run(*tensors)  # type: ignore[no-any-return]


def _registered_gradients(arguments: Arguments) -> Results:
    """Calls the registered gradient, and replaces the empty tensors of absent results by None."""
    results = as_tuple(overload(arguments.signature.name)(*arguments.values))
    return tuple(None if arguments.lacks(index) else result for index, result in enumerate(results))
