"""Makes the call of an op or of its gradient from the declaration: by a kernel, by steps, or by the reference.

Inputs and outputs of the kernel are matched with the arguments and the results of the signature by role and in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from tridal.errors import PluginError
from tridal.kernels.row_kernel import RowKernel
from tridal.ops import row_math
from tridal.ops.arguments import Result
from tridal.ops.kernel_tensors import kernel_tensors
from tridal.ops.op import NoKernel, Op
from tridal.ops.row_math import modification_of
from tridal.ops.signature import Arguments, Rows, Signature, block_dims
from tridal.pytorch.device_context import DeviceContext, device_context, record_torch_call
from tridal.pytorch.path.call import CALLS, Call, Key, Results, store
from tridal.pytorch.path.checks import check_arguments
from tridal.pytorch.path.defined import overload
from tridal.pytorch.path.kernel_calls import kernel_call, variant
from tridal.pytorch.path.keys import NO_KEY, key_function, most_rows
from tridal.pytorch.path.run_source import KernelUse
from tridal.pytorch.path.shard_keys import RUNS, is_sharded, shard_key
from tridal.pytorch.path.step_checks import NamedArguments, naming
from tridal.pytorch.path.steps import Steps, recorded_steps

Tensor = torch.Tensor
NO_DTYPES: Mapping[int, torch.dtype] = MappingProxyType({})


def compute_op(op: Op, arguments: Arguments) -> Results:
    """Computes an op, or its gradient, for the arguments of the registered op, below autograd.

    Raises:
        TypeError, DTypeError, DimensionError, LayoutError, ShapeError, TensorDeviceError: an argument is wrong.
        NoBackendError: no backend computes the dtypes, and the setting `fallback` is "error".
    """
    return call_of_op(op, arguments).run(*arguments.tensors)  # type: ignore[no-any-return]


def call_of_op(op: Op, arguments: Arguments) -> Call:
    """Returns the call of an op or of its gradient: that of an earlier call with the same key, or a new one."""
    key: Key | None = None
    if op.prepares:
        try:
            key = key_function(arguments.signature)(arguments.signature, *arguments.values)
        except NO_KEY:
            key = shard_key(arguments.signature, arguments.values)
        if key is not None and (found := CALLS.get(key)) is not None:
            return found
    return new_call(op, arguments, key)


def new_call(
    op: Op, arguments: Arguments, key: Key | None, overwrites: bool = False,
    sum_dtypes: Mapping[int, torch.dtype] = NO_DTYPES,
) -> Call:  # fmt: skip
    """Checks the arguments. Returns a new call of all results, and stores it. See `make_call`."""
    check_arguments(arguments)
    context = device_context(arguments.main.device)
    call = make_call(context, op, arguments, most_rows=most_rows(key), overwrites=overwrites, sum_dtypes=sum_dtypes)
    if key is not None:
        store(key, call, context)
    return call


def make_call(
    context: DeviceContext, op: Op, arguments: Arguments, results: int | None = None, most_rows: int | None = None,
    overwrites: bool = False, bare: bool = False, sum_dtypes: Mapping[int, torch.dtype] = NO_DTYPES,
) -> Call:  # fmt: skip
    """Returns a new call of arguments that have been checked. The reference computes it if no kernel does.

    Args:
        context: that of the device of the tensors.
        results: how many results are needed, by default all. These are the first ones.
        most_rows: the largest number of rows with the same key, or None for an exact key. `Call.any_rows` tells if the
            call computes all of them.
        overwrites: whether the steps of a backward that is computed once may overwrite saved tensors.
        bare: whether `run` returns its first result instead of a tuple.
        sum_dtypes: dtypes by result. The call may round sums over rows to them.

    Raises:
        NoBackendError: no backend computes the dtypes, and the setting `fallback` is "error".
    """
    signature, numbers, reason = arguments.signature, arguments.numbers, ""
    count = len(signature.results) if results is None else results
    if is_sharded(*arguments.tensors):
        (make,) = RUNS.values()
        return _bare(Call(make(op, arguments)), bare)
    try:
        if signature.steps is not None and not op.prepares:  # their steps also use torch
            return _bare(
                Call(lambda *given: _by_steps(op, Arguments.of(signature, given, numbers), count, overwrites)), bare
            )
        if not context.torch_computes:
            return call_by_kernels(context, op, arguments, count, most_rows, bare, sum_dtypes)
    except NoKernel as raised:
        reason = str(raised)
    call = Call(
        lambda *given: _by_reference(op, Arguments.of(signature, given, numbers), reason), True, by_kernels=False
    )
    return _bare(call, bare)


def _bare(call: Call, bare: bool) -> Call:
    return Call(lambda *tensors: call.run(*tensors)[0], call.any_rows, call.by_kernels) if bare else call


def _by_reference(op: Op, arguments: Arguments, reason: str) -> Results:
    """Computes an op, or its gradient, by torch. Records it with the reason, by default that of the backend."""
    signature = arguments.signature
    record_torch_call(signature.name, arguments.dtypes[0], *arguments.tensors, otherwise=reason or None)
    pairs = zip(reference(op, arguments), signature.results, strict=True)
    return tuple(None if tensor is None else _like_new(tensor, result, arguments.named) for tensor, result in pairs)


def reference(op: Op, arguments: Arguments) -> Results:
    """Returns the results in torch's ops, with the arguments of the registered op. Autograd can differentiate them."""
    if arguments.signature is not op.signature:
        return row_math.compute_gradient(op, *arguments.values)
    # Kernels compute modified scores. The gradient of the mask is one of torch's ops, that of the scores a kernel.
    unmodified = (lambda *given: overload(op.name)(*given)) if op.scale_mask else None
    return row_math.compute(op, *arguments.values, unmodified=unmodified)


def _like_new(tensor: Tensor, result: Result, named: dict[str, Any]) -> Tensor:
    """Returns the tensor, or a copy of it, with the strides that the result of a kernel has.

    It is no view, because autograd does not allow in-place changes of views that a node returns.
    """
    if result.new is None:
        return tensor.clone(memory_format=torch.contiguous_format) if tensor._is_view() else tensor.contiguous()
    new = result.new(named)
    return tensor if tensor.stride() == new.stride() and not tensor._is_view() else new.copy_(tensor)


def call_by_kernels(
    context: DeviceContext, op: Op, arguments: Arguments, results: int, most_rows: int | None = None,
    bare: bool = False, sum_dtypes: Mapping[int, torch.dtype] = NO_DTYPES,
) -> Call:  # fmt: skip
    """Returns the call of kernels with the first results of the signature, see `make_call`.

    Raises:
        NoKernel: no kernel computes them. The message is the reason, if it is not that of the backend.
        NoBackendError: no backend computes the dtypes, and the setting `fallback` is "error".
    """
    signature, wanted = arguments.signature, _wanted(arguments, results)
    if not arguments.main.dim():
        raise NoKernel
    if signature.steps is not None:
        return recorded_steps(op, arguments, context, wanted, most_rows, bare)
    if signature.arguments[0].optional and arguments.values[0] is None:
        raise NoKernel("only results after the first have a gradient")
    reason = None
    if op.unsupported is not None:
        with naming(op, "unsupported"):
            reason = op.unsupported(NamedArguments(arguments), arguments.dtypes)
    if reason is not None or signature.kernel is None:
        raise NoKernel(reason or "")
    if not any(wanted):
        return Call(lambda *_: None if bare else (None,) * len(wanted), any_rows=True)
    return _call_of_kernel(context, op, arguments, wanted, most_rows, bare, sum_dtypes)


def _by_steps(op: Op, arguments: Arguments, results: int, overwrites: bool) -> Results:
    """Computes the steps of a call, or the reference if no kernel computes them."""
    signature, context = arguments.signature, device_context(arguments.main.device)
    try:
        if not arguments.main.dim():
            raise NoKernel
        with naming(op, "steps", (SystemExit,)):
            steps = Steps(op, context, _wanted(arguments, results), overwrites)
            return tuple(signature.steps(steps, arguments.named))  # type: ignore[misc]
    except NoKernel as raised:
        reason = str(raised)
    return _by_reference(op, arguments, reason)


def _wanted(arguments: Arguments, results: int) -> list[bool]:
    """Tells for each result whether a call that needs the first `results` has it."""
    return [index < results and not arguments.lacks(index) for index in range(len(arguments.signature.results))]


def _call_of_kernel(
    context: DeviceContext, op: Op, arguments: Arguments, wanted: Sequence[bool], most_rows: int | None, bare: bool,
    sum_dtypes: Mapping[int, torch.dtype],
) -> Call:  # fmt: skip
    """Returns the call of the kernel that computes the results that are `wanted`, see `make_call`.

    Raises:
        NoKernel: no kernel computes them.
        NoBackendError: no backend computes the dtypes, and the setting `fallback` is "error".
    """
    signature, rows, dtypes = arguments.signature, arguments.rows, arguments.dtypes
    assert signature.kernel is not None
    forward = signature is op.signature
    full, inputs, outputs, absent = _match(arguments, wanted)
    constants = _constants(op, arguments) if op.constants is not None and signature.kernel.constants else ()
    kernel = variant(full, absent, tuple(name for _, name in outputs), constants)
    modification = modification_of(op, arguments.named) if forward else None
    mask = [] if modification is None or modification.mask is None else [signature.names.index("mask")]
    order, of_results = [*(position for position, _ in inputs), *mask], [index for index, _ in outputs]
    roles, block = arguments.result_roles, arguments.block_shape
    use = KernelUse(
        kernel,
        rows.first,
        tuple(dtypes[index] for index in of_results if roles[index] not in ("column", "block")),
        signature.parameters(arguments.named, kernel.parameters),
        arguments.cast,
        takes=tuple(order.index(position) if position in order else None for position in signature.tensors),
        returns=tuple(of_results.index(index) if wanted[index] else None for index in range(len(wanted))),
        block_dims=0 if block is None else block_dims(block, rows.first),
        sum_dtypes=tuple(sum_dtypes.get(index) for index in of_results if roles[index] in ("column", "block")),
    )
    given = [_flat(signature, rows, arguments.values[position], position) for position in order]
    has_views = rows.dims > 1 or "block" in roles
    found = kernel_call(
        context, use, given, modification=modification, most_rows=most_rows, bare=bare and not has_views
    )
    if found is None:
        raise NoKernel
    return _with_views(arguments, use, found, bare) if has_views else found


def _match(
    arguments: Arguments, wanted: Sequence[bool]
) -> tuple[RowKernel, list[tuple[int, str]], list[tuple[int, str]], tuple[str, ...]]:
    """Returns the kernel with all tensors, (position of the argument, name in the kernel) of each input that a call
    has, the same of each result that is wanted, and the names of absent inputs."""
    signature, values = arguments.signature, arguments.values
    kernel, inputs, outputs = kernel_tensors(signature, tuple(arguments.blocks))
    added = None if signature.kernel is None else signature.kernel.added
    left_out = set[int]()
    for position, _ in inputs:  # a gradient that is added may belong to a result that is absent or not needed
        is_added = signature.arguments[position].name == added and values[position] is not None
        if is_added and (not wanted[0] or values[position].shape != arguments.main.shape):
            left_out.add(position)
    present = [(p, name) for p, name in inputs if values[p] is not None and p not in left_out]
    absent = tuple(name for position, name in inputs if (position, name) not in present)
    return kernel, present, [(index, name) for index, name in outputs if wanted[index]], absent


def _constants(op: Op, arguments: Arguments) -> tuple[tuple[str, Any], ...]:
    assert op.constants is not None
    with naming(op, "constants"):
        constants = op.constants(NamedArguments(arguments))
    declared = [name for name, _ in arguments.signature.kernel.constants]  # type: ignore[union-attr]
    if unknown := [name for name in constants if name not in declared]:
        known = ", ".join(declared) or "none"
        raise PluginError(f"op {op.name!r}: constants: its kernel declares no {unknown[0]!r} (known: {known})")
    return tuple(constants.items())


def _flat(signature: Signature, rows: Rows, tensor: Tensor, position: int) -> Tensor:
    """Merges the dims of a row into one."""
    role = signature.arguments[position].role
    if rows.dims == 1 or role in ("row", "index", "mask"):
        return tensor
    return tensor.flatten() if role == "column" else rows.flat(tensor)


def _with_views(arguments: Arguments, use: KernelUse, found: Call, bare: bool) -> Call:
    """Returns the call for tensors whose rows have several dims, or with sums over the rows of blocks.

    It does not read tensors that the kernel does not take, such as the empty gradient of an absent result.
    """
    signature, rows = arguments.signature, arguments.rows
    taken = zip(signature.tensors, use.takes, strict=True)
    positions = [None if number is None else position for position, number in taken]
    main, run = signature.tensors.index(signature.main), found.run
    roles, block = [str(role) for role in arguments.result_roles], arguments.block_shape

    def run_flat(*tensors: Any) -> Any:
        shape = tensors[main].shape
        here = rows._replace(first=len(shape) - rows.dims)
        pairs = zip(tensors, positions, strict=True)
        results = run(*(t if p is None else _flat(signature, here, t, p) for t, p in pairs))
        views: dict[str, Any] = {"element": shape, "column": here.per_column(shape)} if rows.dims > 1 else {}
        viewed = zip(results, roles, strict=True)
        views["block"] = block
        found = tuple(t if t is None or role not in views else t.view(views[role]) for t, role in viewed)
        return found[0] if bare else found

    return Call(run_flat, found.any_rows)
