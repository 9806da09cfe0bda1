"""The call of an op with a kernel: the kernel's tensors, numbers and constants from the arguments of the op.

Inputs and outputs of the kernel are matched with the arguments and the results of the signature by role and in order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from tridal.errors import PluginError
from tridal.ops.op import NoKernel, Op
from tridal.ops.row_maths import modification_of
from tridal.ops.signature import Rows, Signature
from tridal.pytorch.device_context import DeviceContext
from tridal.pytorch.path.call import Call
from tridal.pytorch.path.kernel_calls import kernel_call, variant
from tridal.pytorch.path.run_source import KernelUse
from tridal.pytorch.path.step_checks import NamedArguments, naming

Tensor = torch.Tensor


def kernel_call_of(
    context: DeviceContext, op: Op, signature: Signature, named: NamedArguments, wanted: Sequence[bool],
    most_rows: int | None, bare: bool,
) -> Call:  # fmt: skip
    """Returns the call of the kernel that computes the results that are `wanted`, see `make_call`.

    Raises:
        NoKernel: no kernel computes them.
        NoBackendError: no backend computes the dtypes, and the setting `fallback` is "error".
    """
    assert signature.kernel is not None
    arguments = tuple(named.values())
    rows = signature.rows(arguments)
    inputs, outputs, absent = _match(signature, arguments, wanted)
    constants = _constants(op, named) if op.constants is not None and signature is op.signature else ()
    kernel = variant(signature.kernel, absent, tuple(name for _, name in outputs), constants)
    dtypes, modification = signature.dtypes(named), modification_of(op, named) if signature is op.signature else None
    mask = [] if modification is None or modification.mask is None else [signature.names.index("mask")]
    order, of_results = [*(position for position, _ in inputs), *mask], [index for index, _ in outputs]
    use = KernelUse(
        kernel,
        rows.first,
        tuple(dtypes[index] for index in of_results if signature.results[index].role != "column"),
        signature.parameters(named, kernel.parameters),
        signature.cast(named),
        takes=tuple(order.index(position) if position in order else None for position in signature.tensors),
        returns=tuple(of_results.index(index) if wanted[index] else None for index in range(len(wanted))),
    )
    given = [_flat(signature, rows, arguments[position], position) for position in order]
    found = kernel_call(
        context, use, given, modification=modification, most_rows=most_rows, bare=bare and rows.dims == 1
    )
    if found is None:
        raise NoKernel
    return found if rows.dims == 1 else _with_dims(signature, rows, use, found, bare)


def _match(
    signature: Signature, arguments: tuple[Any, ...], wanted: Sequence[bool]
) -> tuple[list[tuple[int, str]], list[tuple[int, str]], tuple[str, ...]]:
    """Returns (position of the argument, name in the kernel) of each input that a call has, the same of each result
    that is wanted, and the names of absent inputs."""
    inputs, outputs = _kernel_tensors(signature)
    added = None if signature.kernel is None else signature.kernel.added
    main, left_out = arguments[signature.main], set[int]()
    for position, _ in inputs:  # a gradient that is added may belong to a result that is absent or not needed
        is_added = signature.arguments[position].name == added and arguments[position] is not None
        if is_added and (not wanted[0] or arguments[position].shape != main.shape):
            left_out.add(position)
    present = [(p, name) for p, name in inputs if arguments[p] is not None and p not in left_out]
    absent = tuple(name for position, name in inputs if (position, name) not in present)
    return present, [(index, name) for index, name in outputs if wanted[index]], absent


def _constants(op: Op, named: NamedArguments) -> tuple[tuple[str, Any], ...]:
    """Returns the constants of the forward kernel that follow from a call."""
    assert op.constants is not None
    with naming(op, "constants"):
        constants = op.constants(named)
    declared = [name for name, _ in op.forward.constants]
    if unknown := [name for name in constants if name not in declared]:
        known = ", ".join(declared) or "none"
        raise PluginError(f"op {op.name!r}: constants: its kernel declares no {unknown[0]!r} (known: {known})")
    return tuple(constants.items())


@functools.lru_cache(maxsize=1024)
def _kernel_tensors(signature: Signature) -> tuple[tuple[tuple[int, str], ...], tuple[tuple[int, str], ...]]:
    """Returns (position of the argument, name in the kernel) of each input of the full kernel, and the same of each
    result."""
    kernel = signature.kernel
    assert kernel is not None
    elements = signature.with_role("element")
    added = [position for position in elements if signature.names[position] == kernel.added]
    groups = (
        ([position for position in elements if position not in added], kernel.reads), (added, (kernel.added,)),
        (signature.with_role("row"), kernel.row_reads), (signature.with_role("index"), (kernel.row_index,)),
        (signature.with_role("column"), kernel.column_reads),
    )  # fmt: skip
    inputs = tuple((p, str(name)) for positions, names in groups for p, name in zip(positions, names, strict=False))
    written = zip(("element", "row", "column"), (kernel.writes, kernel.row_writes, kernel.column_writes), strict=True)
    roles = [result.role for result in signature.results]
    indices: dict[Any, list[int]] = {}
    for index, role in enumerate(roles):
        indices.setdefault(role, []).append(index)
    outputs = tuple(pair for role, names in written for pair in zip(indices.get(role, []), names, strict=True))
    return inputs, outputs


def _flat(signature: Signature, rows: Rows, tensor: Tensor, position: int) -> Tensor:
    """Returns the tensor with the dims of a row as one."""
    role = signature.arguments[position].role
    if rows.dims == 1 or role in ("row", "index", "mask"):
        return tensor
    return tensor.flatten() if role == "column" else rows.flat(tensor)


def _with_dims(signature: Signature, rows: Rows, use: KernelUse, found: Call, bare: bool) -> Call:
    """Returns the call for tensors whose rows have several dims.

    It does not read tensors that the kernel does not take, such as the empty gradient of an absent result.
    """
    taken = zip(signature.tensors, use.takes, strict=True)
    positions = [None if number is None else position for position, number in taken]
    main, run = signature.tensors.index(signature.main), found.run
    roles = [str(result.role) for result in signature.results]

    def run_flat(*tensors: Any) -> Any:
        shape = tensors[main].shape
        here = rows._replace(first=len(shape) - rows.dims)
        pairs = zip(tensors, positions, strict=True)
        results = run(*(t if p is None else _flat(signature, here, t, p) for t, p in pairs))
        views = {"element": shape, "column": here.per_column(shape)}
        viewed = zip(results, roles, strict=True)
        found = tuple(t if t is None or role == "row" else t.view(views[role]) for t, role in viewed)
        return found[0] if bare else found

    return Call(run_flat, found.any_rows)
