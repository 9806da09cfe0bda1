"""The rules of an op of rows, which follow from its declaration: its kernels, its fake results, and its maths in torch.

Inputs and outputs of a kernel are matched with the arguments and the results of its signature by role and in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tridal.ops import row_maths
from tridal.ops.op import Op
from tridal.ops.row_maths import modification_of
from tridal.ops.signature import Rows, Signature
from tridal.pytorch.call_records import RECORDERS, record_torch
from tridal.pytorch.device_context import DeviceContext, device_context
from tridal.pytorch.path.checks import check_arguments
from tridal.pytorch.path.launch_source import Launch, Prepared
from tridal.pytorch.path.launches import described, prepare_kernel
from tridal.pytorch.path.rules import OpRun, Results, Rules, by_kernels, overload
from tridal.pytorch.path.support import why_torch
from tridal.runtime.row_kernel import RowKernel

Tensor = torch.Tensor


def row_rules(op: Op) -> Rules:
    """Returns the rules of an op of rows."""
    forward, backward = op.signature, op.gradient_signature
    prepare = functools.partial(_prepare, op, forward)
    prepare_backward = functools.partial(_prepare, op, backward)
    # Kernels compute modified scores. So a gradient of the mask is one of torch's ops, and that of the scores a kernel.
    unmodified = overload_of(op) if op.scale_mask else None
    by_torch = _checked(op, forward, functools.partial(row_maths.compute, op, unmodified=unmodified))
    backward_by_torch = _checked(op, backward, functools.partial(row_maths.compute_gradient, op))
    return Rules(
        op=op,
        compute=by_kernels(forward, prepare, _recorded(op, forward, by_torch)),
        fake=_checked(op, forward, functools.partial(_fake, forward)),
        save=op.save,
        backward=by_kernels(backward, prepare_backward, _recorded(op, backward, backward_by_torch)),
        fake_backward=_checked(op, backward, functools.partial(_fake, backward)),
        by_torch=by_torch,
        backward_by_torch=backward_by_torch,
        prepare=prepare,
        prepare_backward=prepare_backward,
    )


def _checked(op: Op, signature: Signature, function: OpRun) -> OpRun:
    """Returns the function with a check of its arguments."""

    def call(*arguments: Any) -> Results:
        check_arguments(op, signature, arguments)
        return function(*arguments)

    return call


def overload_of(op: Op) -> Callable[..., Tensor]:
    """Returns a function that calls the registered op, which is looked up when it is called."""
    return lambda *arguments: overload(op.name)(*arguments)


def _recorded(op: Op, signature: Signature, by_torch: OpRun) -> OpRun:
    """Returns the function for calls without a kernel. It records them, and its results are contiguous."""

    def compute(*arguments: Any) -> Results:
        if RECORDERS:
            _record_torch(op, signature, arguments)
        return tuple(None if result is None else result.contiguous() for result in by_torch(*arguments))

    return compute


def _record_torch(op: Op, signature: Signature, arguments: tuple[Any, ...]) -> None:
    """Records that torch computes a call, and why."""
    named = signature.named(arguments)
    tensors = [tensor for tensor in signature.tensors_of(arguments) if tensor is not None]
    reason = _why_no_kernel(op, signature, named)
    dtypes = signature.dtypes(named)
    reason = why_torch(device_context(tensors[0].device), dtypes[0], *tensors, otherwise=reason)
    record_torch(signature.name, tensors[0], reason)


def _why_no_kernel(op: Op, signature: Signature, named: Mapping[str, Any]) -> str | None:
    """Returns why no kernel computes a call, whatever the backend is; None if one may."""
    first = signature.arguments[0]
    if first.optional and named[first.name] is None:
        return "only results after the first have a gradient"
    return None if op.unsupported is None else op.unsupported(named, signature.dtypes(named))


def _prepare(op: Op, signature: Signature, *arguments: Any, results: int | None = None) -> Prepared | None:
    """Returns run(*tensors) with the results of the signature, or only the first `results`; None if no kernel has them.

    It is prepared once for all calls with equal numbers, and with tensors of the same description.
    """
    context = device_context(arguments[signature.main].device)
    runs = context.runs
    tensors = [None if t is None else described(t) for t in signature.tensors_of(arguments)]
    numbers = [tuple(n) if type(n) is list else n for n in signature.numbers_of(arguments)]
    key = (signature, results, *tensors, *numbers)
    try:
        return runs[key]  # type: ignore[no-any-return]
    except KeyError:
        found = runs[key] = prepare_call(context, op, signature, arguments, results)
        return found


def prepare_call(
    context: DeviceContext, op: Op, signature: Signature, arguments: tuple[Any, ...], results: int | None = None
) -> Prepared | None:
    """Returns run(*tensors) with the results of the signature, or only the first `results`; None if no kernel has them.

    Raises:
        TypeError, DTypeError, DimensionError, LayoutError, ShapeError, TensorDeviceError: an argument is wrong.
        NoBackendError: no backend computes the dtypes, and the setting `fallback` is "error".
    """
    check_arguments(op, signature, arguments)
    named, rows, main = signature.named(arguments), signature.rows(arguments), arguments[signature.main]
    if signature.kernel is None or not main.dim() or _why_no_kernel(op, signature, named) is not None:
        return None
    count = len(signature.results) if results is None else results
    wanted = [index < count and not signature.is_absent(index, named) for index in range(len(signature.results))]
    if not any(wanted):
        return Prepared(lambda *_: (None,) * len(wanted))
    chosen = choose_kernel(op, signature, arguments, wanted)
    kernel, dtypes = chosen.kernel, signature.dtypes(named)
    modification = modification_of(op, named) if signature is op.signature else None
    mask = [] if modification is None or modification.mask is None else [signature.names.index("mask")]
    order = [*chosen.inputs, *mask]
    launch = Launch(
        kernel,
        rows.first,
        tuple(dtypes[index] for index in chosen.outputs if signature.results[index].role != "column"),
        signature.parameters(named, kernel.parameters),
        named.get("dtype") if signature is op.signature else None,
        tuple(order.index(position) if position in order else None for position in signature.tensors),
        tuple(chosen.outputs.index(i) if wanted[i] else None for i in range(len(wanted))),
    )
    given = [_flat(signature, rows, arguments[position], position) for position in order]
    found = prepare_kernel(context, launch, given, modification=modification)
    return found if found is None or rows.dims == 1 else found._replace(run=_with_dims(signature, rows, launch, found))


class ChosenKernel(NamedTuple):
    """The kernel of a call: that of the signature without absent inputs and outputs."""

    kernel: RowKernel
    inputs: tuple[int, ...]
    """The position of the argument for each input."""
    outputs: tuple[int, ...]
    """The index of the result for each output."""


def choose_kernel(op: Op, signature: Signature, arguments: tuple[Any, ...], wanted: Sequence[bool]) -> ChosenKernel:
    """Returns the kernel that computes the results that are `wanted`."""
    inputs, main = _inputs(signature), arguments[signature.main]
    present = [
        (position, name)
        for position, name in inputs
        if arguments[position] is not None and not _is_absent_gradient(signature, position, main, arguments, wanted)
    ]
    outputs = [(index, name) for index, name in _outputs(signature) if wanted[index]]
    absent = tuple(name for position, name in inputs if (position, name) not in present)
    constants: Mapping[str, Any] = {}
    if op.constants is not None and signature is op.signature:
        constants = op.constants(signature.named(arguments))
    assert signature.kernel is not None
    kernel = _kernel(signature.kernel, absent, tuple(name for _, name in outputs), tuple(constants.items()))
    return ChosenKernel(kernel, tuple(p for p, _ in present), tuple(i for i, _ in outputs))


def _is_absent_gradient(
    signature: Signature, position: int, main: Tensor, arguments: tuple[Any, ...], wanted: Sequence[bool]
) -> bool:
    """Returns whether a gradient belongs to a result that the call does not have, or is not needed."""
    argument = signature.arguments[position]
    if signature.main == 0 or signature.kernel is None or argument.name != signature.kernel.added:
        return False
    return not wanted[0] or arguments[position].shape != main.shape


@functools.lru_cache(maxsize=1024)
def _inputs(signature: Signature) -> tuple[tuple[int, str], ...]:
    """Returns the position of the argument, and the kernel's name, of each input of the full kernel."""
    kernel = signature.kernel
    assert kernel is not None
    elements = signature.with_role("element")
    added = [position for position in elements if signature.names[position] == kernel.added]
    groups = (
        ([position for position in elements if position not in added], kernel.reads), (added, (kernel.added,)),
        (signature.with_role("row"), kernel.row_reads), (signature.with_role("index"), (kernel.row_index,)),
        (signature.with_role("column"), kernel.column_reads),
    )  # fmt: skip
    return tuple((p, str(name)) for positions, names in groups for p, name in zip(positions, names, strict=False))


@functools.lru_cache(maxsize=1024)
def _outputs(signature: Signature) -> tuple[tuple[int, str], ...]:
    """Returns the index of the result, and the kernel's name, of each output of the full kernel."""
    kernel = signature.kernel
    assert kernel is not None
    indices = {role: [i for i, r in enumerate(signature.results) if r.role == role] for role in _ROLES}
    names = zip(_ROLES, (kernel.writes, kernel.row_writes, kernel.column_writes), strict=True)
    return tuple(pair for role, given in names for pair in zip(indices[role], given, strict=True))


_ROLES = ("element", "row", "column")


@functools.lru_cache(maxsize=1024)
def _kernel(
    kernel: RowKernel, absent: tuple[str, ...], outputs: tuple[str, ...], constants: tuple[tuple[str, Any], ...]
) -> RowKernel:
    """Returns the kernel without absent inputs and outputs. Sums of columns alone need no statistics."""
    others = tuple((name, value) for name, value in kernel.constants if name not in dict(constants))
    kernel = replace(kernel, constants=others).bind(**dict(constants), **dict.fromkeys(absent)).writing(*outputs)
    only_sums = kernel.neutral_padding and not (kernel.writes or kernel.row_writes)
    return replace(kernel, statistics=()) if only_sums else kernel


def _flat(signature: Signature, rows: Rows, tensor: Tensor, position: int) -> Tensor:
    """Returns the tensor with the dims of a row as one."""
    role = signature.arguments[position].role
    if rows.dims == 1 or role in ("row", "index", "mask"):
        return tensor
    return tensor.flatten() if role == "column" else rows.flat(tensor)


def _with_dims(signature: Signature, rows: Rows, launch: Launch, found: Prepared) -> OpRun:
    """Returns the function for tensors whose rows have several dims.

    It does not read tensors that the kernel does not take, such as the empty gradient of an absent result.
    """
    taken = zip(signature.tensors, launch.takes, strict=True)
    positions = [None if number is None else position for position, number in taken]
    main, run = signature.tensors.index(signature.main), found.run
    roles = [str(result.role) for result in signature.results]

    def run_flat(*tensors: Any) -> Results:
        pairs = zip(tensors, positions, strict=True)
        results = run(*(t if p is None else _flat(signature, rows, t, p) for t, p in pairs))
        shape = tensors[main].shape
        views = {"element": shape, "column": rows.per_column(shape)}
        viewed = zip(results, roles, strict=True)
        return tuple(t if t is None or role == "row" else t.view(views[role]) for t, role in viewed)

    return run_flat


def _fake(signature: Signature, *arguments: Any) -> Results:
    """Returns empty tensors with the shapes and dtypes of the results."""
    named, rows, main = signature.named(arguments), signature.rows(arguments), arguments[signature.main]
    shapes = {"element": main.shape, "row": rows.per_row(main.shape), "column": rows.per_column(main.shape)}
    return tuple(
        None if signature.is_absent(index, named) else main.new_empty(shapes[str(result.role)], dtype=dtype)
        for index, (result, dtype) in enumerate(zip(signature.results, signature.dtypes(named), strict=True))
    )
