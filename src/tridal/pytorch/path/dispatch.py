"""Computes a call of a function that has no `Call` yet, from the arguments of the registered op.

call_op -> a new Call         plain tensors
        -> registered op      torch.compile, tensor subclasses, modes, transforms
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tridal.devices.settings import current
from tridal.errors import PluginError
from tridal.ops.op import Op
from tridal.ops.signature import Arguments
from tridal.pytorch.device_context import device_context, is_served, record_torch_call
from tridal.pytorch.path.call import CALLS, Call, Key, store
from tridal.pytorch.path.checks import check_arguments
from tridal.pytorch.path.defined import call_registered, has_gradient, picked
from tridal.pytorch.path.keys import NO_KEY, key_function, most_rows
from tridal.pytorch.path.node import CallNode
from tridal.pytorch.path.op_calls import make_call
from tridal.pytorch.path.shard_keys import direct_key
from tridal.pytorch.path.state import is_direct, records_gradient
from tridal.pytorch.torch import private
from tridal.pytorch.torch.distributed import is_distributed

Tensor = torch.Tensor
_compiling = torch.compiler.is_dynamo_compiling


@functools.partial(private.skip_frames, inlined=True)
def call_op(
    op: Op, key: Key | None, given: Sequence[Any], *arguments: Any, results: int | tuple[int, ...] = 1,
    views: Callable[..., Sequence[Tensor | None]] | None = None, overwrites: bool = False,
    by_torch: Callable[..., Any] | None = None, checked: bool = False,
) -> Any:  # fmt: skip
    """Computes an op. Returns its first result, or a tuple of its first `results` or of those with these indices.

    The caller has handled `__torch_function__`.

    Args:
        op: the op.
        key: the key of the function's call, with which the new call is stored. None: the arguments give the key.
        given: the tensors of the function.
        arguments: those of the registered op. Its tensors are the given ones, or `views` of them, some of them cast.
        results: how many results the function returns, or their indices, of which the last one is the largest.
        views: views(*given) returns the op's tensors before they are cast, if these are not the given ones.
        overwrites: whether a backward that is computed once may overwrite the saved tensors.
        by_torch: by_torch(*given) computes the call instead of the op, because no backend serves the tensors.
        checked: whether the caller has checked the arguments, by `check_arguments` or by checks that refuse as much.
    """
    if by_torch is not None:
        if key is not None:
            kept = Call(by_torch, any_rows=True, by_kernels=False)
            store(key, kept, device_context(given[0].device))
        return by_torch(*given)
    call: Call | None = None
    bound = Arguments(op.signature, arguments)
    if key is None:  # a call with a key has plain tensors, and no mode or compiler has to see it
        given, views = bound.tensors, None
        if not _compiling() and op.prepares and is_distributed(*given):
            key = direct_key((op, results), arguments)
            call = None if key is None else CALLS.get(key)
        if key is None and (_compiling() or not is_direct(*(tensor for tensor in given if tensor is not None))):
            return call_registered(op, arguments, results)
        if key is None and op.prepares:
            try:
                key = key_function(op.signature)((op, results), *arguments)
                call = CALLS.get(key)
            except NO_KEY:
                key = None
    elif is_distributed(*given) and any(a is not b for a, b in zip(bound.tensors, given, strict=False)):
        return call_registered(op, arguments, results)  # ranks may exchange shards for a view or a cast
    if call is None:
        call = _new_call(op, key, given, bound, results, views, overwrites, checked)
        if call is None:
            return call_registered(op, arguments, results)
    return call.compute(*given)


def _new_call(
    op: Op, key: Key | None, given: Sequence[Any], arguments: Arguments, returned: int | tuple[int, ...],
    views: Callable[..., Sequence[Tensor | None]] | None, overwrites: bool, checked: bool,
) -> Call | None:  # fmt: skip
    """Returns a new call of a function, and stores it.

    Returns None if the op's gradient does not cover all tensors that require one. The registered op then differentiates
    the reference.
    """
    tensors, results = arguments.tensors, returned if isinstance(returned, int) else returned[-1] + 1
    recorded = op.differentiable_results > 0 and records_gradient(*tensors)
    if recorded and not has_gradient(op, arguments):
        return None
    if not checked:
        check_arguments(arguments)
    casts = _casts(op, tensors, given if views is None else views(*given))
    # A kernel that leaves out results may have another plan, and so another order of additions.
    needed, bare = None if recorded or current().batch_invariant else results, returned == 1 and not recorded
    context = device_context(arguments.main.device)
    call = make_call(context, op, arguments, needed, most_rows(key), bare=bare)
    if recorded:
        call.add_gradient(op, arguments, results, overwrites)
        call.compute = functools.partial(CallNode.apply, call)
    if returned != results or (not recorded and 1 < results < len(op.results)):  # a node leaves out the last ones
        call.compute = functools.partial(_picked, call.compute, returned)
    if views is not None or any(casts):
        call.compute = functools.partial(_compute_views, call.compute, views, casts)
    if key is not None and op.prepares:
        store(key, call, context)
    return call


def _casts(op: Op, tensors: Sequence[Any], viewed: Sequence[Any]) -> list[torch.dtype | None]:
    """Returns the dtypes to which the tensors of a function are cast before the op computes them; None is no cast.

    Raises:
        PluginError: a tensor of the op is neither a tensor of the function, nor a cast of one.
    """
    casts: list[torch.dtype | None] = []
    for name, tensor, given in zip((op.signature.names[i] for i in op.signature.tensors), tensors, viewed, strict=True):
        cast = tensor is not None and given is not None and tensor.dtype is not given.dtype
        same = tensor is given or (tensor is not None and given is not None and tensor.shape == given.shape)
        if same and not cast and tensor is not given:
            same = (tensor.stride(), tensor.data_ptr()) == (given.stride(), given.data_ptr())
        if not same:
            raise PluginError(
                f"op {op.name!r}: its function passes another tensor as {name!r} than it was given, but later calls "
                "have only their own tensors: make it with views=, see tridal.pytorch.op_function"
            )
        casts.append(tensor.dtype if cast else None)
    return casts


def torch_computes(op: str, *tensors: torch.Tensor | None) -> bool:
    """Returns whether torch computes a call because no backend serves the first tensor's device. Records such a call.

    DTensors are computed by the op's DTensor rule.
    """
    assert tensors[0] is not None
    device = tensors[0].device
    if _compiling():
        # The registered op cannot see the level of forward-mode AD that a compiled function entered.
        return private.forward_ad_level() >= 0 or (not is_served(device.type) and not is_distributed(*tensors))
    if is_distributed(*tensors) or not device_context(device).torch_computes:
        return False
    record_torch_call(op, None, *tensors)
    return True


def _picked(compute: Callable[..., Any], wanted: int | tuple[int, ...], *tensors: Tensor | None) -> Any:
    return picked(compute(*tensors), wanted)


def _compute_views(
    compute: Callable[..., Any], views: Callable[..., Any] | None, casts: Sequence[torch.dtype | None],
    *given: Tensor | None,
) -> Any:  # fmt: skip
    """Computes a call of views of tensors, cast to dtypes. None is no cast."""
    viewed = given if views is None else views(*given)
    pairs = zip(viewed, casts, strict=True)
    return compute(*(t if t is None or dtype is None else t.to(dtype) for t, dtype in pairs))
