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

from tridal.errors import DTypeError
from tridal.ops import row_math
from tridal.ops.argument_checks import wrong
from tridal.ops.row_math import modification_of
from tridal.ops.row_reduce import RowReduce
from tridal.ops.signature import Rows
from tridal.pytorch.call_records import RECORDERS, record_torch
from tridal.pytorch.path.call import Results
from tridal.pytorch.path.checks import check_arguments
from tridal.pytorch.path.defined import overload
from tridal.pytorch.path.registered import ON_REGISTER, REGISTERED, Registered, on_dispatch
from tridal.pytorch.torch.private import mesh_all_reduce
from tridal.runtime.row_layout import contiguous_strides


class ShardedReduce(RowReduce):
    """Reduces rows that are sharded. Each rank passes its shards, which may have no elements."""

    sharded = True

    def __init__(self, main: DTensor, rows: Rows, placements: _Placements) -> None:
        sizes = rows.shapes(main.shape)
        self.count, self.rows = math.prod(sizes["column"]), math.prod(sizes["row"])
        self.dim = -1 if rows.dims > 1 else rows.first
        self._mesh, self._placements, self._sizes = main.device_mesh, placements, sizes["column"]

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
            x = mesh_all_reduce(x, how, self._mesh, axis)
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


def _rule(registered: Registered) -> Any:
    in_torch: Callable[..., Results] = row_math.compute
    if registered.name != registered.op:
        in_torch = row_math.compute_gradient

    def compute(cls: type, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        op, arguments = registered.newest(args)
        check_arguments(arguments)
        signature, args, main, rows = arguments.signature, arguments.values, arguments.main, arguments.rows
        if signature is op.signature and modification_of(op, arguments.named) is not None:
            return in_torch(op, *args, unmodified=overload(op.name))[0]
        for index in signature.tensors:
            if args[index] is not None and not isinstance(args[index], DTensor):
                given = type(args[index]).__name__, "distribute all tensors"
                raise DTypeError(wrong(signature.name, signature.names[index], "be a DTensor, as others are", *given))
        roles, results = [*arguments.roles.values()], arguments.result_roles
        placements = _Placements.of(main.placements if roles[signature.main] == "element" else (), rows)
        gathered = "top_index" in (*roles, *results) and bool(placements.axes)
        if gathered:  # a rank that chooses columns needs all of them
            axes, given = placements.axes, main.placements
            placements = _Placements.of([_WHOLE if axis in axes else p for axis, p in enumerate(given)], rows)
        mesh, shape = main.device_mesh, main.shape
        whole = [_WHOLE] * mesh.ndim
        by_role: dict[Any, list[Placement]] = {"element": placements.element, "row": placements.row}
        by_role |= dict.fromkeys(("index", "top", "top_index"), placements.row)
        by_role |= {"column": placements.column, "number": whole, "whole": whole}
        shapes = arguments.shapes
        if block := shapes.get("block"):
            by_role["block"] = _of_blocks(placements.element, block, _WHOLE)
        local: list[Any] = list(args)
        for index in signature.tensors:
            argument, tensor = signature.arguments[index], args[index]
            if argument.optional and roles[index] == "element" and tensor is not None and tensor.shape != shape:
                local[index] = None  # the gradient of a sum that the call does not have
            elif tensor is not None:
                local[index] = redistributed(tensor, mesh, by_role[roles[index]]).to_local()
        if "dim" in arguments.named:
            local[signature.names.index("dim")] = rows.first
        found: Any
        if placements.axes or (placements.row_axes and "number" in (*roles, *results)):
            if RECORDERS:
                record_torch(signature.name, local[signature.main], "the rows are sharded over ranks")
            found = in_torch(op, *local, reduce=ShardedReduce(main, rows, placements))
        else:
            found = overload(signature.name)(*local)
        found = (found,) if isinstance(found, torch.Tensor) else found
        by_role["column"] = placements.column_sum
        if block:
            by_role["block"] = _of_blocks(placements.element, block, Partial())

        def wrapped(result: Any, role: Any) -> torch.Tensor:
            if result is None or role is None:
                return from_shards(local[signature.main].new_empty(0), mesh, whole, (0,))
            shards = from_shards(result.contiguous(), mesh, by_role[role], shapes.get(role, result.shape))
            return redistributed(shards, mesh, main.placements) if gathered and role == "element" else shards

        wrapped_results = tuple(map(wrapped, found, results))
        return wrapped_results[0] if len(wrapped_results) == 1 else wrapped_results

    return compute


def redistributed(tensor: DTensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """Returns the tensor with these placements, without a gradient: rules run below autograd.

    Before torch 2.12, redistributing fails there if it is not needed, or if the tensor requires a gradient.
    """
    if tensor.device_mesh == mesh and tuple(tensor.placements) == tuple(placements):
        return tensor
    without_gradient: Any = tensor.detach()
    return without_gradient.redistribute(mesh, placements)  # type: ignore[no-any-return]


def from_shards(
    local: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int]
) -> DTensor:
    """Returns the contiguous DTensor of this shape, of which each rank passes its shard."""
    strides = contiguous_strides([max(size, 1) for size in shape])
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=strides)


ON_REGISTER.append(_register)
for _registered in REGISTERED:
    _register(_registered)
