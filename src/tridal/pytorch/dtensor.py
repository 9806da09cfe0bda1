"""The ops for DTensor: a row that is spread over ranks is reduced where it lies, exchanging its (max, sum) alone.

With x spread along the softmax dimension, m = max over ranks of the local max and s = sum over ranks of the local
sum(exp(x - m)) are all that ranks have to know of each other: two numbers a row, in the accumulator's dtype, and one
for the gradient. Spread along other dimensions, everything stays local. Imported when the first DTensor is met.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import _functional_collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate

from tridal.devices.types import Op
from tridal.pytorch import registered_ops as ops
from tridal.pytorch.prepared import BACKWARD
from tridal.runtime.row_layout import contiguous_strides

_collectives: Any = _functional_collectives


def register() -> None:
    """Teaches the ops what DTensor is."""
    for op, backward in BACKWARD.items():
        ops.on_dispatch(op, DTensor, _forward(op))
        ops.on_dispatch(backward, DTensor, _backward(op))


def _forward(op: Op) -> Any:
    def compute(cls: type, func: Any, types: Any, args: tuple[DTensor, int, torch.dtype], kwargs: Any) -> DTensor:
        input, dim, dtype = args
        dim %= max(input.dim(), 1)
        input = _at(input, input.device_mesh, [_whole(placement) for placement in input.placements])
        local, spread = input.to_local(), _spread(input, dim)
        if not spread:
            return _like(input, func(local, dim, dtype))
        x = local.to(_accumulator(dtype))
        top = _all_reduce(_max(x, dim), "max", input, spread)
        shifted = x - top
        exponential = shifted.exp()
        total = _all_reduce(exponential.sum(dim, keepdim=True), "sum", input, spread)
        y = shifted - total.log() if op == "log_softmax" else exponential / total
        return _like(input, y.to(dtype))

    return compute


def _backward(op: Op) -> Any:
    def compute(
        cls: type, func: Any, types: Any, args: tuple[DTensor, DTensor, int, torch.dtype], kwargs: Any
    ) -> DTensor:
        grad, output, dim, dtype = args
        dim %= max(output.dim(), 1)
        output = _at(output, output.device_mesh, [_whole(placement) for placement in output.placements])
        grad = _at(grad, output.device_mesh, output.placements)
        spread = _spread(output, dim)
        if not spread:
            return _like(output, func(grad.to_local(), output.to_local(), dim, dtype))
        y = output.to_local().to(_accumulator(output.dtype))
        g = grad.to_local().to(y.dtype)
        if op == "log_softmax":
            dx = g - y.exp() * _all_reduce(g.sum(dim, keepdim=True), "sum", output, spread)
        else:
            dx = y * (g - _all_reduce((y * g).sum(dim, keepdim=True), "sum", output, spread))
        return _like(output, dx.to(dtype))

    return compute


def _at(tensor: DTensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """The tensor placed so. To move nothing is left out: before 2.12, torch can't below autograd."""
    there = tensor.device_mesh == mesh and tuple(tensor.placements) == tuple(placements)
    return tensor if there else tensor.redistribute(mesh, placements)


def _whole(placement: Placement) -> Placement:
    """A sum that is still to be made over ranks has to be made first: a softmax of summands is none of their sum."""
    return Replicate() if placement.is_partial() else placement


def _spread(tensor: DTensor, dim: int) -> list[int]:
    """The mesh dimensions over which the rows along `dim` are spread. In which order doesn't matter to a sum."""
    return [axis for axis, placement in enumerate(tensor.placements) if getattr(placement, "dim", None) == dim]


def _max(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Of the rows of a shard, which may hold none of their elements."""
    if x.shape[dim]:
        return x.amax(dim, keepdim=True)
    return x.new_full([1 if axis == dim else size for axis, size in enumerate(x.shape)], -torch.inf)


def _all_reduce(x: torch.Tensor, how: str, tensor: DTensor, axes: Sequence[int]) -> torch.Tensor:
    for axis in axes:
        x = _collectives.wait_tensor(_collectives.all_reduce(x, how, (tensor.device_mesh, axis)))
    return x


def _like(tensor: DTensor, local: torch.Tensor) -> DTensor:
    return DTensor.from_local(
        local,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=contiguous_strides([max(size, 1) for size in tensor.shape]),
    )


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


register()
