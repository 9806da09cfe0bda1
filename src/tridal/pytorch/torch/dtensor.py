"""The DTensor rules of the ops. They follow from the roles of the tensors.

If no dim of a row is sharded, each rank computes its complete rows, and sums over rows are `Partial`. If one is, each
rank computes the op's reference on its shard. The ranks then exchange only row statistics: one number per row and
reduction, in the accumulator's dtype. If the op chooses columns, the rows are gathered instead. If a call has one
number of all rows, such as a mean, and ranks have some of the rows, each rank computes the reference, too. The first
call after the import of torch's DTensor module imports this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from tridal.devices.settings import current, restored
from tridal.errors import DTypeError
from tridal.ops import row_math
from tridal.ops.argument_checks import wrong
from tridal.ops.op import Op
from tridal.ops.row_math import modification_of
from tridal.ops.row_reduce import RowReduce
from tridal.ops.signature import Arguments, Rows
from tridal.pytorch.call_records import RECORDERS, record_torch
from tridal.pytorch.path.call import Results
from tridal.pytorch.path.defined import as_tuple, overload
from tridal.pytorch.path.op_calls import compute_op
from tridal.pytorch.path.registered import ON_REGISTER, REGISTERED, Registered, on_dispatch
from tridal.pytorch.path.shard_keys import RUNS
from tridal.pytorch.torch.part_kernels import kernels_of_parts, traced
from tridal.pytorch.torch.private import all_reduce, below_autograd, needs_dispatcher, spec_and_shard
from tridal.runtime.row_layout import contiguous_strides


class ShardedReduce(RowReduce):
    """Reduces rows that are sharded. Each rank passes its shards, which may have no elements."""

    sharded = True

    def __init__(self, main: DTensor, rows: Rows, placements: _Placements) -> None:
        sizes = rows.shapes(main.shape)
        self.count, self.rows = math.prod(sizes["column"]), math.prod(sizes["row"])
        self.dim = -1 if rows.dims > 1 else rows.first
        self._mesh, self._placements, self._sizes = main.device_mesh, placements, sizes["column"]
        self._names = {a: self._mesh.get_group(a).group_name for a in (*placements.axes, *placements.row_axes)}
        self.groups = [(self._names[a], self._mesh.size(a)) for a in placements.axes if self._mesh.size(a) > 1]
        """The names and the sizes of the process groups over which rows are sharded."""

    def __call__(self, x: torch.Tensor, how: Literal["max", "sum"]) -> torch.Tensor:
        """Returns the maximum or the sum of each row over all ranks."""
        if how == "sum":
            reduced = x.sum(self.dim, keepdim=True)
        elif x.shape[self.dim]:
            reduced = x.amax(self.dim, keepdim=True)
        else:
            reduced = x.sum(self.dim, keepdim=True) - torch.inf
        return self._over(self._placements.axes, reduced, how)

    def total(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the sum of a number per row over all rows of all ranks."""
        return self._over(self._placements.row_axes, x.sum(), "sum")

    def _over(self, axes: Sequence[int], x: torch.Tensor, how: str) -> torch.Tensor:
        for axis in axes:
            x = all_reduce(x, how, self._names[axis])
        return x

    def columns(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the column of each element of the shard, in int64."""
        columns = torch.arange(self.count, device=x.device).view(self._sizes)
        whole = DTensor.from_local(columns, self._mesh, [_WHOLE] * self._mesh.ndim, run_check=False)
        shard = redistributed(whole, self._mesh, self._placements.column).to_local().flatten()
        return shard.view(-1, *[1] * (x.dim() - 1 - self.dim % x.dim()))


def _register(registered: Registered) -> None:
    """Registers the DTensor rule of a registered op."""
    on_dispatch(registered, DTensor, _rule(registered))


class _Placements(NamedTuple):
    """How the tensors of a call are placed, by role. Each list has an entry for each mesh dim."""

    element: list[Placement]
    row: list[Placement]
    column: list[Placement]
    column_sum: list[Placement]
    """The placements of sums over rows with a number per column."""
    axes: list[int]
    """The mesh dims over which a dim of a row is sharded."""
    row_axes: list[int]
    """The mesh dims of which each rank has some of the rows."""

    @classmethod
    def of(cls, main: Sequence[Placement], rows: Rows) -> _Placements:
        """Returns the placements that follow from those of the tensor with a number per element."""
        found = cls([], [], [], [], [], [])
        for axis, placement in enumerate(main):
            element = row = column = column_sum = _WHOLE
            if type(placement) is Shard:  # an op is not linear, so a partial placement is reduced before it
                element = placement
                if rows.of_row(placement.dim):
                    column = column_sum = Shard(placement.dim - rows.first)
                    found.axes.append(axis)
                else:
                    row = Shard(placement.dim - rows.dims * (placement.dim >= rows.first))
                    column_sum = Partial()
                    found.row_axes.append(axis)
            for placements, new in zip(found[:4], (element, row, column, column_sum), strict=True):
                placements.append(new)
        return found


_WHOLE: Placement = Replicate()


def _of_blocks(placements: Sequence[Placement], block: Sequence[int], missing: Placement) -> list[Placement]:
    """Returns the placements of tensors with a number per column and block: those of the tensor with a number per
    element, or `missing` where its shards are parts of a block."""
    return [missing if type(p) is Shard and block[p.dim] == 1 else p for p in placements]


class ShardedCall:
    """Computes an op or its gradient for all DTensors with the specs of the given ones. It holds no tensor.

    The first call computes what follows from the shards, and not the constructor. The ranks therefore exchange the same
    in each call, also if one of them has forgotten an earlier one.
    """

    def __init__(self, op: Op, arguments: Arguments) -> None:
        signature, main, rows, shapes = arguments.signature, arguments.main, arguments.rows, arguments.shapes
        args, roles, results = arguments.values, [*arguments.roles.values()], arguments.result_roles
        placements = _Placements.of(main.placements if roles[signature.main] == "element" else (), rows)
        gathered = "top_index" in (*roles, *results) and bool(placements.axes)
        if gathered:  # a rank that chooses columns needs all of them
            axes, given = placements.axes, main.placements
            placements = _Placements.of([_WHOLE if axis in axes else p for axis, p in enumerate(given)], rows)
        mesh, block = main.device_mesh, shapes.get("block")
        whole = [_WHOLE] * mesh.ndim
        by_role: dict[Any, list[Placement]] = {"element": placements.element, "row": placements.row}
        by_role |= dict.fromkeys(("index", "top", "top_index"), placements.row)
        by_role |= {"column": placements.column, "number": whole, "whole": whole}
        if block:
            by_role["block"] = _of_blocks(placements.element, block, _WHOLE)
        self._inputs: list[list[Placement] | None] = []
        """The placements to which each tensor is redistributed; None for absent ones."""
        for index in signature.tensors:
            tensor, is_element = args[index], roles[index] == "element"
            # A gradient with another shape is that of a sum that the call does not have.
            left_out = signature.arguments[index].optional and is_element and tensor is not None
            left_out = left_out and tensor.shape != main.shape
            self._inputs.append(None if tensor is None or left_out else by_role[roles[index]])
        by_role["column"] = placements.column_sum
        if block:
            by_role["block"] = _of_blocks(placements.element, block, Partial())
        self._outputs = [None if role is None else (by_role[role], shapes.get(role)) for role in results]
        self._back = [main.placements if gathered and role == "element" else None for role in results]
        """The placements to which each result is redistributed, or None."""
        named = dict(zip(signature.names, args, strict=True))
        named |= {"dim": rows.first} if "dim" in named else {}
        self._numbers = [named[signature.names[index]] for index in signature.numbers]
        self._op, self._signature, self._mesh = op, signature, mesh
        self._main, self._settings = signature.tensors.index(signature.main), current()
        exchanges = placements.axes or (placements.row_axes and "number" in (*roles, *results))
        self._reduce = ShardedReduce(main, rows, placements) if exchanges else None
        self._by_kernels: tuple[Callable[..., Results] | None] | None = None
        self._by_reference: Callable[..., Results] | None = None
        self._specs: list[Any] = [None] * len(results)

    def __call__(self, *tensors: Any) -> Results:
        """Returns the results, or None for those that are absent."""
        with below_autograd():
            pairs = zip(tensors, self._inputs, strict=True)
            shards = [None if p is None else _shard(tensor, self._mesh, p) for tensor, p in pairs]
            found = self._compute(shards)
            return tuple(None if result is None else self._wrapped(i, result) for i, result in enumerate(found))

    def _compute(self, shards: Sequence[Any]) -> Results:
        if current() is not self._settings:  # the backward may run in another thread than the forward
            with restored(self._settings):
                return self._compute(shards)
        signature = self._signature
        if self._reduce is None:
            if needs_dispatcher():  # a mode sees the registered op
                return as_tuple(overload(signature.name)(*self._arguments(shards).values))
            return compute_op(self._op, self._arguments(shards))
        if not traced(shards):
            if self._by_kernels is None:
                given = self._arguments(shards)
                self._by_kernels = (kernels_of_parts(self._op, given, self._reduce.count, self._reduce.groups),)
            (run,) = self._by_kernels
            if run is not None:
                return run(*shards)
        if RECORDERS:
            record_torch(signature.name, shards[self._main], "the rows are sharded over ranks")
        if self._by_reference is None:
            self._by_reference = row_math.bound(self._op, self._arguments(shards), self._reduce)
        return self._by_reference(*shards)

    def _arguments(self, shards: Sequence[torch.Tensor | None]) -> Arguments:
        return Arguments.of(self._signature, shards, self._numbers)

    def _wrapped(self, index: int, shard: torch.Tensor) -> torch.Tensor | None:
        """Returns the DTensor of a result, of which this rank has computed its shard."""
        if (output := self._outputs[index]) is None:
            return None
        shard, spec = shard.contiguous(), self._specs[index]
        if spec is not None:
            return DTensor(shard, spec, requires_grad=False)  # type: ignore[no-untyped-call]
        result = from_shards(shard, self._mesh, output[0], output[1] or shard.shape)
        if (back := self._back[index]) is not None:
            return redistributed(result, self._mesh, back)
        if (found := spec_and_shard(result)) is not None and found[1].shape == shard.shape:
            self._specs[index] = found[0]
        return result


def sharded_run(op: Op, arguments: Arguments) -> Callable[..., Results]:
    """Returns run(*tensors), which computes an op or its gradient for DTensors like the given ones.

    Raises:
        DTypeError: one of the tensors is not a DTensor.
    """
    signature = arguments.signature
    for index, tensor in zip(signature.tensors, arguments.tensors, strict=True):
        if tensor is not None and not isinstance(tensor, DTensor):
            given = type(tensor).__name__, "distribute all tensors"
            raise DTypeError(wrong(signature.name, signature.names[index], "be a DTensor, as others are", *given))
    if signature is not op.signature or modification_of(op, arguments.named) is None:
        return ShardedCall(op, arguments)
    numbers = arguments.numbers

    def modified(*tensors: Any) -> Results:
        with below_autograd():
            given = Arguments.of(op.signature, tensors, numbers).values
            return row_math.compute(op, *given, unmodified=overload(op.name))

    return modified


def _rule(registered: Registered) -> Any:
    def compute(cls: type, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        op, arguments = registered.newest(args)
        main = arguments.main

        def empty() -> DTensor:
            return from_shards(main.to_local().new_empty(0), main.device_mesh, [_WHOLE] * main.device_mesh.ndim, (0,))

        found = tuple(empty() if result is None else result for result in compute_op(op, arguments))
        return found[0] if len(found) == 1 else found

    return compute


def _shard(tensor: Any, mesh: DeviceMesh, placements: Sequence[Placement]) -> torch.Tensor:
    """Returns this rank's shard of the tensor with these placements."""
    found = spec_and_shard(redistributed(tensor, mesh, placements))
    return tensor.to_local() if found is None else found[1]


def redistributed(tensor: DTensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """Returns the tensor with these placements, without a gradient: rules run below autograd.

    Before torch 2.12, redistributing fails there if it is not needed, or if the tensor requires a gradient.
    """
    if (tensor.device_mesh is mesh or tensor.device_mesh == mesh) and tensor.placements == tuple(placements):
        return tensor
    without_gradient: Any = tensor.detach()
    return without_gradient.redistribute(mesh, placements)  # type: ignore[no-any-return]


def from_shards(
    local: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int]
) -> DTensor:
    """Returns the contiguous DTensor of this shape, of which each rank passes its shard."""
    strides = contiguous_strides([max(size, 1) for size in shape])
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=strides)


RUNS[DTensor] = sharded_run
ON_REGISTER.append(_register)
for _registered in REGISTERED:
    _register(_registered)
