"""DTensor rules of the ops of rows. They follow from the roles of the tensors.

If no dim of a row is sharded, each rank computes its complete rows, and sums over rows are `Partial`. If one is, each
rank computes the op's reference on its shard. The ranks then exchange only row statistics: one number per row and
reduction, in the accumulator's dtype. The first call after the import of torch's DTensor module imports this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Literal, NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from tridal.errors import DTypeError, LayoutError
from tridal.ops import row_maths
from tridal.ops.op import Op
from tridal.ops.row_maths import modification_of
from tridal.ops.row_reduce import RowReduce
from tridal.ops.signature import Rows, Signature
from tridal.pytorch.call_records import RECORDERS, record_torch
from tridal.pytorch.path.checks import check_arguments
from tridal.pytorch.path.registered import ON_DEFINE, on_dispatch
from tridal.pytorch.path.rules import DEFINED, Results, Rules, overload
from tridal.pytorch.torch.private import mesh_all_reduce
from tridal.runtime.row_layout import contiguous_strides

_all_reduce = mesh_all_reduce()


class ShardedReduce(RowReduce):
    """Reduces rows of `count` elements that are sharded over the mesh dims `axes`. Each rank passes its shards."""

    def __init__(self, count: int, dim: int, mesh: DeviceMesh, axes: Sequence[int]) -> None:
        self.count, self._dim, self._mesh, self._axes = count, dim, mesh, axes

    def __call__(self, x: torch.Tensor, how: Literal["max", "sum"]) -> torch.Tensor:
        """Returns the maximum or the sum of each row over all ranks. A shard may have no elements."""
        if how == "sum":
            reduced = x.sum(self._dim, keepdim=True)
        elif x.shape[self._dim]:
            reduced = x.amax(self._dim, keepdim=True)
        else:
            reduced = x.sum(self._dim, keepdim=True) - torch.inf
        for axis in self._axes:
            reduced = _all_reduce(reduced, how, self._mesh, axis)
        return reduced

    def columns(self, x: torch.Tensor) -> torch.Tensor:
        """Raises LayoutError, because a rank does not know the columns of its shard."""
        raise LayoutError("the op needs the columns of elements, so its rows cannot be sharded: redistribute the input")


def _register(rules: Rules) -> None:
    """Registers the DTensor rules of an op of rows and of its gradient."""
    op = rules.op
    if op.dtensor is not None:
        import_module(op.dtensor)
    if op.of_rows:
        on_dispatch(op.name, DTensor, _rule(op, op.signature, row_maths.compute))
    if op.of_rows and op.gradient is not None:
        rule = _rule(op, op.gradient_signature, row_maths.compute_gradient)
        on_dispatch(f"{op.name}_backward", DTensor, rule)


class _Placements(NamedTuple):
    """How the tensors of a call are placed, by role. Each list has an entry for each mesh dim."""

    element: list[Placement]
    row: list[Placement]
    column: list[Placement]
    column_sum: list[Placement]
    """The placements of sums over rows with a number per column."""
    axes: list[int]
    """The mesh dims over which a dim of a row is sharded."""

    @classmethod
    def of(cls, main: DTensor, rows: Rows) -> _Placements:
        """Returns the placements that follow from those of the tensor with a number per element."""
        found = cls([], [], [], [], [])
        for axis, placement in enumerate(main.placements):
            element = row = column = column_sum = _WHOLE
            if type(placement) is Shard:  # an op is not linear, so a partial placement is reduced before it
                element = placement
                if rows.of_row(placement.dim):
                    column = column_sum = Shard(placement.dim - rows.first)
                    found.axes.append(axis)
                else:
                    row = Shard(placement.dim - rows.dims * (placement.dim >= rows.first))
                    column_sum = Partial()
            for placements, new in zip(found[:4], (element, row, column, column_sum), strict=True):
                placements.append(new)
        return found


_WHOLE: Placement = Replicate()


def _rule(op: Op, signature: Signature, maths: Callable[..., Results]) -> Any:
    """Returns the rule of a registered op of rows."""

    def compute(cls: type, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        args = signature.complete(args)
        check_arguments(op, signature, args)
        named, main, rows = signature.named(args), args[signature.main], signature.rows(args)
        if signature is op.signature and modification_of(op, named) is not None:
            return maths(op, *args, unmodified=overload(op.name))[0]
        for index in signature.tensors:
            if args[index] is not None and not isinstance(args[index], DTensor):
                raise DTypeError(f"{signature.name} got both DTensors and other tensors: distribute all of them")
        placements, mesh, shape = _Placements.of(main, rows), main.device_mesh, main.shape
        by_role = {"element": placements.element, "row": placements.row, "index": placements.row}
        by_role["column"] = placements.column
        local: list[Any] = list(args)
        for index in signature.tensors:
            argument, tensor = signature.arguments[index], args[index]
            if argument.optional and argument.role == "element" and tensor is not None and tensor.shape != shape:
                local[index] = None  # the gradient of a sum that the call does not have
            elif tensor is not None:
                local[index] = redistributed(tensor, mesh, by_role[str(argument.role)]).to_local()
        if "dim" in named:
            local[signature.names.index("dim")] = rows.first
        found: Any
        if placements.axes:
            if RECORDERS:
                record_torch(signature.name, local[signature.main], "the rows are sharded over ranks")
            flat = -1 if rows.dims > 1 else rows.first
            reduce = ShardedReduce(math.prod(rows.per_column(shape)), flat, mesh, placements.axes)
            found = maths(op, *local, reduce=reduce)
        else:
            found = overload(signature.name)(*local)
        found = (found,) if isinstance(found, torch.Tensor) else found
        shapes = {"element": shape, "row": rows.per_row(shape), "column": rows.per_column(shape)}
        by_role["column"] = placements.column_sum

        def wrapped(result: Any, index: int) -> torch.Tensor:
            if result is None or signature.is_absent(index, named):
                return from_shards(local[signature.main].new_empty(0), mesh, [_WHOLE] * mesh.ndim, (0,))
            role = str(signature.results[index].role)
            return from_shards(result.contiguous(), mesh, by_role[role], shapes[role])

        results = tuple(wrapped(result, index) for index, result in enumerate(found))
        return results[0] if len(results) == 1 else results

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


ON_DEFINE.append(_register)
for _rules in DEFINED.values():
    _register(_rules)
