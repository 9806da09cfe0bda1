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
from tridal.pytorch.private import mesh_all_reduce
from tridal.pytorch.reference import accumulator
from tridal.pytorch.registered_ops import on_dispatch, when_registered
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
    on_dispatch(op.name, DTensor, _forward(op))
    on_dispatch(op.backward.name, DTensor, _backward(op))


def _forward(op: RowOp) -> Any:
    def compute(cls: type, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> DTensor:
        input, dim, dtype, *arguments = args
        dim %= max(input.dim(), 1)
        input = _redistributed(input, input.device_mesh, [_without_partial(p) for p in input.placements])
        local, axes = input.to_local(), _sharded_axes(input, dim)
        if not axes:
            return _like(input, func(local, dim, dtype, *arguments))
        x = local.to(dtype).to(accumulator(dtype))
        values = dict(zip(op.parameters, (*arguments, *list(op.parameters.values())[len(arguments) :]), strict=False))
        return _like(input, op.reference(x, _ShardedReduce(input, dim, axes), **values).to(dtype))

    return compute


def _backward(op: RowOp) -> Any:
    defaults = {name: op.parameters.get(name, 1.0) for name in op.backward.parameters}

    def compute(cls: type, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> DTensor:
        grad, saved, dim, dtype, *arguments = args
        dim %= max(saved.dim(), 1)
        saved = _redistributed(saved, saved.device_mesh, [_without_partial(p) for p in saved.placements])
        grad = _redistributed(grad, saved.device_mesh, saved.placements)
        axes = _sharded_axes(saved, dim)
        if not axes:
            return _like(saved, func(grad.to_local(), saved.to_local(), dim, dtype, *arguments))
        wide = accumulator(saved.dtype)
        local, local_grad = saved.to_local().to(wide), grad.to_local().to(wide)
        values = dict(zip(defaults, (*arguments, *list(defaults.values())[len(arguments) :]), strict=True))
        dx = op.gradient(local_grad, local, _ShardedReduce(saved, dim, axes), **values)
        return _like(saved, dx.to(dtype))

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


when_registered(_register)
