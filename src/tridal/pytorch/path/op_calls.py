"""Makes the call of an op or of its gradient from the declaration: by a kernel, by steps, or by the reference."""

from __future__ import annotations

from typing import Any

import torch

from tridal.ops import row_maths
from tridal.ops.arguments import Named, Result
from tridal.ops.op import NoKernel, Op
from tridal.ops.signature import Signature
from tridal.pytorch.device_context import DeviceContext, device_context
from tridal.pytorch.path.call import CALLS, Call, Key, Results, store
from tridal.pytorch.path.checks import check_arguments
from tridal.pytorch.path.defined import overload
from tridal.pytorch.path.keys import NO_KEY, key_function, most_rows
from tridal.pytorch.path.op_kernels import kernel_call_of
from tridal.pytorch.path.recorder import recorded_steps
from tridal.pytorch.path.step_checks import NamedArguments, naming
from tridal.pytorch.path.steps import Steps, fake_results
from tridal.pytorch.path.support import record_torch_call

Tensor = torch.Tensor


def compute_op(op: Op, signature: Signature, *arguments: Any) -> Results:
    """Returns the results of an op, or of its gradient, for the arguments of the registered op, below autograd.

    Raises:
        TypeError, DTypeError, DimensionError, LayoutError, ShapeError, TensorDeviceError: an argument is wrong.
        NoBackendError: no backend computes the dtypes, and the setting `fallback` is "error".
    """
    return call_of_op(op, signature, arguments).run(*signature.tensors_of(arguments))  # type: ignore[no-any-return]


def call_of_op(op: Op, signature: Signature, arguments: tuple[Any, ...]) -> Call:
    """Returns the call of an op or of its gradient: that of an earlier call with the same key, or a new one."""
    key: Key | None = None
    if op.prepares:
        try:
            key = key_function(signature)(signature, *arguments)
            if (found := CALLS.get(key)) is not None:
                return found
        except NO_KEY:
            key = None
    check_arguments(op, signature, arguments)
    context = device_context(arguments[signature.main].device)
    call = make_call(context, op, signature, arguments, most_rows=most_rows(key))
    if key is not None:
        store(key, call, context)
    return call


def make_call(
    context: DeviceContext, op: Op, signature: Signature, arguments: tuple[Any, ...], results: int | None = None,
    most_rows: int | None = None, overwrites: bool = False, bare: bool = False,
) -> Call:  # fmt: skip
    """Returns a new call of arguments that have been checked. The reference computes it if no kernel does.

    Args:
        context: that of the device of the tensors.
        results: how many results are needed, by default all. These are the first ones.
        most_rows: the largest number of rows with the same key, or None for an exact key. `Call.any_rows` tells if the
            call computes all of them.
        overwrites: whether the steps of a backward that is computed once may overwrite saved tensors.
        bare: whether `run` returns its first result instead of a tuple.

    Raises:
        NoBackendError: no backend computes the dtypes, and the setting `fallback` is "error".
    """
    numbers, reason = signature.numbers_of(arguments), ""
    count = len(signature.results) if results is None else results
    try:
        if signature.steps is not None and not op.prepares:  # their steps also use torch
            return _bare(Call(lambda *tensors: _by_steps(op, signature, tensors, numbers, count, overwrites)), bare)
        if not context.torch_computes:
            return call_by_kernels(context, op, signature, arguments, count, most_rows, bare)
    except NoKernel as raised:
        reason = str(raised)
    call = Call(lambda *tensors: _by_reference(op, signature, tensors, numbers, reason), True, by_kernels=False)
    return _bare(call, bare)


def _bare(call: Call, bare: bool) -> Call:
    """Returns the call, or the one that returns its first result."""
    return Call(lambda *tensors: call.run(*tensors)[0], call.any_rows, call.by_kernels) if bare else call


def _by_reference(
    op: Op, signature: Signature, tensors: tuple[Any, ...], numbers: tuple[Any, ...], reason: str
) -> Results:
    """Computes an op, or its gradient, by torch. Records it with the reason, by default that of the backend."""
    arguments = signature.joined(tensors, numbers)
    named = signature.named(arguments)
    record_torch_call(signature.name, signature.dtypes(named)[0], *tensors, otherwise=reason or None)
    pairs = zip(reference(op, signature, arguments), signature.results, strict=True)
    return tuple(None if tensor is None else _like_new(tensor, result, named) for tensor, result in pairs)


def reference(op: Op, signature: Signature, arguments: tuple[Any, ...]) -> Results:
    """Returns the results in torch's ops, with the arguments of the registered op. Autograd can differentiate them."""
    if signature is not op.signature:
        return row_maths.compute_gradient(op, *arguments)
    # Kernels compute modified scores. So a gradient of the mask is one of torch's ops, and that of the scores a kernel.
    unmodified = (lambda *given: overload(op.name)(*given)) if op.scale_mask else None
    return row_maths.compute(op, *arguments, unmodified=unmodified)


def fake(op: Op, signature: Signature, arguments: tuple[Any, ...]) -> Results:
    """Checks the arguments of a registered op. Returns empty tensors with the shapes and dtypes of the results."""
    check_arguments(op, signature, arguments)
    return fake_results(signature, *arguments)


def _like_new(tensor: Tensor, result: Result, named: dict[str, Any]) -> Tensor:
    """Returns the tensor, or a copy of it, with the strides that the result of a kernel has.

    It is no view, because autograd does not allow in-place changes of views that a node returns.
    """
    if result.new is None:
        return tensor.clone(memory_format=torch.contiguous_format) if tensor._is_view() else tensor.contiguous()
    new = result.new(named)
    return tensor if tensor.stride() == new.stride() and not tensor._is_view() else new.copy_(tensor)


def call_by_kernels(
    context: DeviceContext, op: Op, signature: Signature, arguments: tuple[Any, ...], results: int,
    most_rows: int | None = None, bare: bool = False,
) -> Call:  # fmt: skip
    """Returns the call of kernels with the first results of the signature, see `make_call`.

    Raises:
        NoKernel: no kernel computes them. The message is the reason, if it is not that of the backend.
        NoBackendError: no backend computes the dtypes, and the setting `fallback` is "error".
    """
    named, main = NamedArguments(signature, arguments), arguments[signature.main]
    wanted = _wanted(signature, named, results)
    if not main.dim():
        raise NoKernel
    if signature.steps is not None:
        return recorded_steps(op, signature, arguments, context, wanted, most_rows, bare)
    if signature.arguments[0].optional and arguments[0] is None:
        raise NoKernel("only results after the first have a gradient")
    reason = None
    if op.unsupported is not None:
        with naming(op, "unsupported"):
            reason = op.unsupported(named, signature.dtypes(named))
    if reason is not None or signature.kernel is None:
        raise NoKernel(reason or "")
    if not any(wanted):
        return Call(lambda *_: None if bare else (None,) * len(wanted), any_rows=True)
    return kernel_call_of(context, op, signature, named, wanted, most_rows, bare)


def _by_steps(
    op: Op, signature: Signature, tensors: tuple[Any, ...], numbers: tuple[Any, ...], results: int, overwrites: bool
) -> Results:
    """Computes the steps of a call, or the reference if no kernel computes them."""
    arguments = signature.joined(tensors, numbers)
    named, context = signature.named(arguments), device_context(arguments[signature.main].device)
    try:
        if not arguments[signature.main].dim():
            raise NoKernel
        with naming(op, "steps", (SystemExit,)):
            steps = Steps(op, context, _wanted(signature, named, results), overwrites)
            return tuple(signature.steps(steps, named))  # type: ignore[misc]
    except NoKernel as raised:
        reason = str(raised)
    return _by_reference(op, signature, tensors, numbers, reason)


def _wanted(signature: Signature, named: Named, results: int) -> list[bool]:
    """Returns for each result whether a call that needs the first `results` has it."""
    return [index < results and not signature.is_absent(index, named) for index in range(len(signature.results))]
