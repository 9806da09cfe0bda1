"""DTensor rules of the ops.

If the normalised dim is not sharded, each rank computes its complete rows. If the dim is sharded, each rank computes
the op's reference on its shard. The ranks then exchange only row statistics: one number per row and reduction, in the
accumulator's dtype. The first call after the import of torch's DTensor module imports this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate

from tridal.ops.row_op import RowOp
from tridal.ops.row_reduce import RowReduce, accumulator
from tridal.pytorch.call_records import RECORDERS, record_torch
from tridal.pytorch.op_call import GradientCall, OpCall
from tridal.pytorch.private import mesh_all_reduce
from tridal.pytorch.reference import compute_call
from tridal.pytorch.registered_ops import ON_REGISTER, REGISTERED, on_dispatch
from tridal.pytorch.validation import check_call
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


def _register(op: RowOp) -> None:
    """Registers the DTensor rules of an op and of its gradient."""
    on_dispatch(op.name, DTensor, _rule(op, OpCall, 1))
    on_dispatch(op.backward.name, DTensor, _rule(op, GradientCall, 2))


def _rule(op: RowOp, kind: type[OpCall], count: int) -> Any:
    """Returns the rule of a registered op with `count` tensors. The result gets the placements of the last tensor."""

    def compute(cls: type, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> torch.Tensor:
        call, last = kind.of(op, *args[count:]), args[count - 1]
        check_call(call, *args[:count])
        if call.modification is not None:
            return compute_call(call, args[0], dispatch=True)
        # The op is not linear, so a partial placement is reduced before the op.
        placements = [Replicate() if placement.is_partial() else placement for placement in last.placements]
        tensors = [redistributed(tensor, last.device_mesh, placements).to_local() for tensor in args[:count]]
        dim = call.dim % max(last.dim(), 1)
        axes = [axis for axis, placement in enumerate(placements) if getattr(placement, "dim", None) == dim]
        if axes:
            if RECORDERS:
                record_torch(call.kernel.name, tensors[0], "the rows are sharded over ranks")
            tensors = tensors if kind is GradientCall else [tensors[0].to(call.dtype)]
            wide, rows = accumulator(*tensors), ShardedReduce(last.shape[dim], dim, last.device_mesh, axes)
            function = op.gradient if kind is GradientCall else op.reference
            values = op.keywords(call.kernel, call.parameters)
            result = function(*(x.to(wide) for x in tensors), rows, **values).to(call.dtype)
        else:
            result = call._replace(dim=dim).dispatch(*tensors)
        return from_shards(result, last.device_mesh, placements, last.shape)

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
for _op in REGISTERED.values():
    _register(_op)
