"""The rules of an op, which follow from its declaration: its kernels or steps, its fake results, its maths in torch.

Inputs and outputs of a kernel are matched with the arguments and the results of its signature by role and in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from tridal.errors import PluginError
from tridal.ops import row_maths
from tridal.ops.arguments import Result
from tridal.ops.op import NoKernel, Op
from tridal.ops.row_maths import modification_of
from tridal.ops.signature import Rows, Signature
from tridal.pytorch.device_context import DeviceContext, device_context
from tridal.pytorch.path.checks import check_arguments
from tridal.pytorch.path.prepared_kernels import described, prepare_kernel, variant
from tridal.pytorch.path.rules import OpRun, Results, Rules, overload
from tridal.pytorch.path.run_source import Launch, Prepared
from tridal.pytorch.path.step_checks import NamedArguments, naming
from tridal.pytorch.path.steps import Steps, fake_results, prepare_steps
from tridal.pytorch.path.support import record_torch_call
from tridal.runtime.row_kernel import RowKernel

Tensor = torch.Tensor


def rules_of(op: Op, overwrites: Callable[[], bool] | None = None) -> Rules:
    """Returns the rules of an op.

    `overwrites` tells whether a backward that is not prepared may write into the memory of saved tensors.
    """
    forward, backward = op.signature, op.gradient_signature
    # Kernels compute modified scores. So a gradient of the mask is one of torch's ops, and that of the scores a kernel.
    unmodified = overload_of(op) if op.scale_mask else None
    by_torch = _checked(op, forward, functools.partial(row_maths.compute, op, unmodified=unmodified))
    backward_by_torch = _checked(op, backward, functools.partial(row_maths.compute_gradient, op))
    return Rules(
        op=op,
        compute=_by_kernels(op, forward, by_torch),
        fake=_checked(op, forward, functools.partial(fake_results, forward)),
        backward=_by_kernels(op, backward, backward_by_torch, overwrites),
        fake_backward=_checked(op, backward, functools.partial(fake_results, backward)),
        by_torch=by_torch,
        backward_by_torch=backward_by_torch,
        prepare=functools.partial(_prepare, op, forward) if op.prepares else None,
        prepare_backward=functools.partial(_prepare, op, backward) if op.prepares else None,
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


def _by_kernels(op: Op, signature: Signature, by_torch: OpRun, overwrites: Callable[[], bool] | None = None) -> OpRun:
    """Returns f(*arguments), which computes an op, or its gradient, by kernels, or by torch where no kernel does.

    Calls that torch computes are recorded.
    """

    def compute(*arguments: Any, results: int | None = None) -> Results:
        found = _find(op, signature, arguments, results, overwrites is not None and overwrites())
        if isinstance(found, Prepared):
            try:
                return found.run(*signature.tensors_of(arguments))
            except NoKernel as raised:  # by the steps of a call that is not prepared
                found = raised.with_traceback(None)
        named = signature.named(arguments)
        tensors, dtype = signature.tensors_of(arguments), signature.dtypes(named)[0]
        record_torch_call(signature.name, dtype, *tensors, otherwise=str(found) or None)
        pairs = zip(by_torch(*arguments), signature.results, strict=True)
        return tuple(None if tensor is None else _like_new(tensor, result, named) for tensor, result in pairs)

    return compute


def _like_new(tensor: Tensor, result: Result, named: dict[str, Any]) -> Tensor:
    """Returns the tensor, or a copy of it, with the strides that the result of a kernel has.

    It is no view, because autograd does not allow in-place changes of views that a node returns.
    """
    if result.new is None:
        return tensor.clone(memory_format=torch.contiguous_format) if tensor._is_view() else tensor.contiguous()
    new = result.new(named)
    return tensor if tensor.stride() == new.stride() and not tensor._is_view() else new.copy_(tensor)


def _prepare(op: Op, signature: Signature, *arguments: Any, results: int | None = None) -> Prepared | None:
    """Returns run(*tensors) with the results of the signature, or only the first `results`; None if no kernel has them.

    It is prepared once for all calls with equal numbers, and with tensors of the same description.
    """
    found = _find(op, signature, arguments, results)
    return found if isinstance(found, Prepared) else None


def _find(
    op: Op, signature: Signature, arguments: tuple[Any, ...], results: int | None, overwrites: bool = False
) -> Prepared | NoKernel:
    """Returns the result of `prepare_call`, or what it raises, for tensors of the same description."""
    context = device_context(arguments[signature.main].device)
    if not op.prepares:
        return prepare_call(context, op, signature, arguments, results, overwrites)
    if context.torch_computes:
        return NoKernel()
    tensors = [None if t is None else described(t) for t in signature.tensors_of(arguments)]
    numbers = [tuple(n) if type(n) is list else n for n in signature.numbers_of(arguments)]
    key = (signature, results, *tensors, *numbers)
    try:
        return context.runs[key]  # type: ignore[no-any-return]
    except KeyError:
        pass
    found: Prepared | NoKernel
    try:
        found = prepare_call(context, op, signature, arguments, results)
    except NoKernel as raised:
        found = raised.with_traceback(None)  # it refers to the tensors
    context.runs[key] = found
    return found


def prepare_call(
    context: DeviceContext, op: Op, signature: Signature, arguments: tuple[Any, ...], results: int | None = None,
    overwrites: bool = False,
) -> Prepared:  # fmt: skip
    """Returns run(*tensors) with the results of the signature, or only the first `results`.

    Raises:
        NoKernel: no kernel has them. The message is the reason, if it is not that of the backend.
        TypeError, DTypeError, DimensionError, LayoutError, ShapeError, TensorDeviceError: an argument is wrong.
        NoBackendError: no backend computes the dtypes, and the setting `fallback` is "error".
    """
    check_arguments(op, signature, arguments)
    named, rows, main = NamedArguments(signature, arguments), signature.rows(arguments), arguments[signature.main]
    count = len(signature.results) if results is None else results
    wanted = [index < count and not signature.is_absent(index, named) for index in range(len(signature.results))]
    steps = signature.steps
    if not main.dim():
        raise NoKernel
    if steps is not None:
        if op.prepares:
            return prepare_steps(op, signature, arguments, context, wanted)

        def run(*_: Any) -> Results:
            with naming(op, "steps", (SystemExit,)):
                return tuple(steps(Steps(op, context, wanted, overwrites), named))

        return Prepared(run)
    if signature.arguments[0].optional and arguments[0] is None:
        raise NoKernel("only results after the first have a gradient")
    with naming(op, "unsupported"):
        reason = None if op.unsupported is None else op.unsupported(named, signature.dtypes(named))
    if reason is not None or signature.kernel is None:
        raise NoKernel(reason or "")
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
        signature.cast(named),
        tuple(order.index(position) if position in order else None for position in signature.tensors),
        tuple(chosen.outputs.index(i) if wanted[i] else None for i in range(len(wanted))),
    )
    given = [_flat(signature, rows, arguments[position], position) for position in order]
    found = prepare_kernel(context, launch, given, modification=modification)
    if found is None:
        raise NoKernel
    return found if rows.dims == 1 else found._replace(run=_with_dims(signature, rows, launch, found))


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
        with naming(op, "constants"):
            constants = op.constants(NamedArguments(signature, arguments))
        declared = [name for name, _ in op.forward.constants]
        if unknown := [name for name in constants if name not in declared]:
            known = ", ".join(declared) or "none"
            raise PluginError(f"op {op.name!r}: constants: its kernel declares no {unknown[0]!r} (known: {known})")
    assert signature.kernel is not None
    kernel = variant(signature.kernel, absent, tuple(name for _, name in outputs), tuple(constants.items()))
    return ChosenKernel(kernel, tuple(p for p, _ in present), tuple(i for i, _ in outputs))


def _is_absent_gradient(
    signature: Signature, position: int, main: Tensor, arguments: tuple[Any, ...], wanted: Sequence[bool]
) -> bool:
    """Returns whether a gradient belongs to a result that the call does not have, or is not needed."""
    argument = signature.arguments[position]
    if signature.kernel is None or argument.name != signature.kernel.added:
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
