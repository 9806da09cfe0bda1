"""The rules of ops for DTensor.

Where rows are whole on each rank, each rank computes its own. Where rows are sharded over ranks, the op's reference
computes the local part, and only row statistics are exchanged: a number per row for each reduction, in the
accumulator's dtype. This module is imported when the first DTensor is met.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate

from tridal.ops.row_op import RowOp
from tridal.pytorch.op_call import GradientCall, OpCall
from tridal.pytorch.private import mesh_all_reduce
from tridal.pytorch.reference import accumulator, compute_call
from tridal.pytorch.registered_ops import ON_REGISTER, REGISTERED, on_dispatch
from tridal.pytorch.validation import check_call
from tridal.runtime.row_layout import contiguous_strides

_all_reduce = mesh_all_reduce()


class _ShardedReduce:
    """`RowReduce` for rows that are sharded over the mesh dims `axes`."""

    def __init__(self, tensor: DTensor, dim: int, axes: Sequence[int]) -> None:
        self.count = tensor.shape[dim]
        self._tensor, self._dim, self._axes = tensor, dim, axes

    def __call__(self, x: torch.Tensor, how: Literal["max", "sum"]) -> torch.Tensor:
        """The maximum or the sum of each row, over all ranks."""
        reduced = x.sum(self._dim, keepdim=True) if how == "sum" else _local_max(x, self._dim)
        for axis in self._axes:
            reduced = _all_reduce(reduced, how, self._tensor.device_mesh, axis)
        return reduced


def _register(op: RowOp) -> None:
    """Registers the rules of an op."""
    on_dispatch(op.name, DTensor, _rule(op, OpCall, 1))
    on_dispatch(op.backward.name, DTensor, _rule(op, GradientCall, 2))


def _rule(op: RowOp, kind: type[OpCall], count: int) -> Any:
    """The rule of a registered op with `count` tensors. The placements are those of the last one."""

    def compute(cls: type, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> torch.Tensor:
        call = kind.of(op, *args[count:])
        check_call(call, *args[:count])
        if call.modification is not None:
            return compute_call(call, args[0], dispatch=True)
        last, dim = args[count - 1], call.dim % max(args[0].dim(), 1)
        last = _redistributed(last, last.device_mesh, [_without_partial(p) for p in last.placements])
        tensors = [_redistributed(tensor, last.device_mesh, last.placements) for tensor in (*args[: count - 1], last)]
        local, axes = [tensor.to_local() for tensor in tensors], _sharded_axes(last, dim)
        if not axes:
            return _like(last, call._replace(dim=dim).dispatch(*local))
        if kind is OpCall:
            local = [local[0].to(call.dtype)]
        wide = accumulator(*(tensor.dtype for tensor in local))
        function = op.reference if kind is OpCall else op.gradient
        values = op.keywords(call.kernel, call.parameters)
        result = function(*(tensor.to(wide) for tensor in local), _ShardedReduce(last, dim, axes), **values)
        return _like(last, result.to(call.dtype))

    return compute


def _redistributed(tensor: DTensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """The tensor with these placements. Before torch 2.12, redistribute fails below autograd even if nothing moves."""
    same = tensor.device_mesh == mesh and tuple(tensor.placements) == tuple(placements)
    return tensor if same else tensor.redistribute(mesh, placements)


def _without_partial(placement: Placement) -> Placement:
    """Replicate instead of a pending sum over ranks: the op of a sum is not the sum of the ops."""
    return Replicate() if placement.is_partial() else placement


def _sharded_axes(tensor: DTensor, dim: int) -> list[int]:
    """The mesh dims over which the rows along `dim` are sharded."""
    return [axis for axis, placement in enumerate(tensor.placements) if getattr(placement, "dim", None) == dim]


def _local_max(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The maximum of each row of a shard, which may have no elements."""
    if x.shape[dim]:
        return x.amax(dim, keepdim=True)
    return x.new_full([1 if axis == dim else size for axis, size in enumerate(x.shape)], -torch.inf)


def _like(tensor: DTensor, local: torch.Tensor) -> DTensor:
    return DTensor.from_local(
        local,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=contiguous_strides([max(size, 1) for size in tensor.shape]),
    )


ON_REGISTER.append(_register)
for _op in REGISTERED.values():
    _register(_op)
