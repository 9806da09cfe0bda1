"""DTensor rules of cross-entropy. See `dtensor_rules` for when it is imported.

If the classes are not sharded, each rank computes its rows. If they are, each rank computes the maths of cross-entropy
in torch's ops on its shard, and the ranks exchange only numbers per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.utils.checkpoint import checkpoint

from tridal.library.losses import cross_entropy as maths
from tridal.library.losses.cross_entropy import NONE, classes_dim
from tridal.library.losses.linear_chunks import chunk_rows
from tridal.library.losses.linear_cross_entropy import logits_of
from tridal.ops.row_reduce import accumulator
from tridal.pytorch.path.calls import call
from tridal.pytorch.path.registered import on_dispatch
from tridal.pytorch.path.rules import DEFINED, overload
from tridal.pytorch.torch.dtensor import ShardedReduce, from_shards, redistributed

Tensor = torch.Tensor


class _Placed:
    """The placements of a call's tensors, which follow from those of the logits."""

    def __init__(self, input: DTensor) -> None:
        self.mesh, self.shape, self.dim = input.device_mesh, input.shape, classes_dim(input)
        kept: list[Placement] = [p if isinstance(p, Shard) else Replicate() for p in input.placements]
        self.elements = kept
        self.axes = [axis for axis, p in enumerate(kept) if isinstance(p, Shard) and p.dim == self.dim]
        self.rows: list[Placement] = [self._row(p) for p in kept]
        self.columns: list[Placement] = [Shard(0) if axis in self.axes else Replicate() for axis in range(len(kept))]

    def _row(self, placement: Placement) -> Placement:
        if not isinstance(placement, Shard) or placement.dim == self.dim:
            return Replicate()
        return Shard(placement.dim - (placement.dim > self.dim))

    def local(self, tensor: Tensor | None, placements: Sequence[Placement]) -> Any:
        """Returns this rank's part of a tensor. A tensor that is not distributed is the same on all ranks."""
        if tensor is None:
            return None
        if not isinstance(tensor, DTensor):
            replicated = [Replicate()] * len(placements)
            tensor = DTensor.from_local(tensor, self.mesh, replicated, run_check=False)
        return redistributed(tensor, self.mesh, placements).to_local()

    def placed(self, local: Tensor, placements: Sequence[Placement]) -> DTensor:
        """Returns the DTensor of this rank's part of the logits or of a tensor with a number per row."""
        rows = (*self.shape[: self.dim], *self.shape[self.dim + 1 :])
        return from_shards(local, self.mesh, placements, self.shape if placements is self.elements else rows)

    def target(self, target: Tensor) -> Any:
        """Returns this rank's part of the targets."""
        return self.local(target, self.elements if target.is_floating_point() else self.rows)

    def classes(self, input: DTensor, local: Tensor) -> maths.Classes:
        """Returns the classes of this rank's logits."""
        count = self.shape[self.dim]
        columns = self.local(torch.arange(count, device=local.device), self.columns)
        columns = columns.view(-1, *[1] * (local.dim() - 1 - self.dim))
        return maths.Classes(columns, count, ShardedReduce(count, self.dim, self.mesh, self.axes))


def _forward(cls: type, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> tuple[Tensor, ...]:
    """Returns the loss, the log-sum-exp and the weight of each row."""
    input, target, weight, reduction, *numbers, dtype = args
    if reduction != NONE:
        raise NotImplementedError(
            "torch.ops.tridal.cross_entropy does not reduce the losses of DTensors: call tridal.cross_entropy"
        )
    placed = _Placed(input)
    x, t, w = placed.local(input, placed.elements), placed.target(target), placed.local(weight, placed.columns)
    if placed.axes:
        arguments: list[Any] = [x, t, w, *numbers, placed.classes(input, x)]
        rows, lse, scale = maths.sharded_rows(*arguments)
    else:
        rows, lse, _ = overload("cross_entropy")(x, t, w, NONE, *numbers, dtype)
        scale = torch.ones_like(lse) if t.is_floating_point() else maths.target_weights(t, w, numbers[0], lse.dtype)
    return tuple(placed.placed(local, placed.rows) for local in (rows.to(dtype), lse, scale))


def _backward(cls: type, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> tuple[Tensor, ...]:
    """Returns the gradient of the logits with their placements, and that of probabilities."""
    grad, lse_grad, input, target, weight, lse, _, _, *numbers, output_mask = args
    placed = _Placed(input)
    x, t, w = placed.local(input, placed.elements), placed.target(target), placed.local(weight, placed.columns)
    grads = [placed.local(given, placed.rows) for given in (grad, lse_grad, lse)]
    arguments: list[Any] = [*grads[:2], x, t, w, grads[2], None, NONE, *numbers, output_mask]
    if placed.axes:
        arguments.append(placed.classes(input, x))
        found: Any = maths.gradient(*arguments)
    else:
        found = overload("cross_entropy_backward")(*arguments)
    none = x.new_empty(0)
    return tuple(
        placed.placed(local, placed.elements) if wanted else none
        for local, wanted in zip(found, output_mask, strict=True)
    )


def reduced(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: int, *numbers: Any
) -> tuple[Tensor, Tensor]:
    """Returns the loss of distributed logits, reduced over all ranks, and the log-sum-exp of each row."""
    *rest, dtype = numbers
    arguments = (input, target, weight, NONE, *rest, accumulator(input, target, weight))
    rows, lse, scale = call(DEFINED["cross_entropy"], arguments)
    assert rows is not None
    assert lse is not None
    assert scale is not None
    if reduction == maths.NONE:
        return rows.to(dtype), lse
    loss = rows.sum()
    return (loss / scale.sum() if reduction == maths.MEAN else loss).to(dtype), lse


def linear_cross_entropy(
    input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None, weight: Tensor | None,
    reduction: int, ignore_index: int, label_smoothing: float, z_loss: float, softcap: float | None,
    dtype: torch.dtype, matmul_dtype: torch.dtype, accum_dtype: torch.dtype, chunk_size: int,
) -> Tensor:  # fmt: skip
    """Returns the loss of distributed tensors. The backward computes the logits of each chunk again.

    Rows that are sharded over ranks are one chunk, because a chunk of them would have to be redistributed.
    """
    numbers = (ignore_index, label_smoothing, z_loss, softcap)
    found = next(t for t in (linear_weight, input, target, linear_bias, weight) if isinstance(t, DTensor))

    def distributed(tensor: Any) -> Any:
        if tensor is None or isinstance(tensor, DTensor):
            return tensor
        mesh = found.device_mesh
        return DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)

    x, matrix, bias = distributed(input), distributed(linear_weight), distributed(linear_bias)
    rows = x.shape[0]
    step = chunk_size or chunk_rows(rows, linear_weight, matmul_dtype, accum_dtype)
    step = rows if any(placement.is_shard(0) for placement in x.placements) else step

    def losses(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits_of(x, matrix, bias, matmul_dtype)
        wide = accumulator(logits, target, weight)
        results: Any = call(DEFINED["cross_entropy"], (logits, target, weight, NONE, *numbers, wide))
        return results[0], results[2]

    chunks = [
        _again(losses, x[start : start + step], target[start : start + step])
        for start in range(0, max(rows, 1), max(step, 1))
    ]
    rows_, scale = (torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*chunks, strict=True))
    if reduction == maths.NONE:
        return rows_.to(dtype)
    return (rows_.sum() / scale.sum() if reduction == maths.MEAN else rows_.sum()).to(dtype)


def _again(function: Callable[..., Any], *tensors: Tensor) -> Any:
    """Calls a function. The backward calls it again instead of saving its tensors."""
    return checkpoint(function, *tensors, use_reentrant=False)


on_dispatch("cross_entropy", DTensor, _forward)
on_dispatch("cross_entropy_backward", DTensor, _backward)
