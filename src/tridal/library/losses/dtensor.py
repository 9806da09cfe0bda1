"""Cross-entropy of DTensors: the losses of rows by the op, and their reduction over ranks by torch's ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.utils.checkpoint import checkpoint

from tridal.library.losses.cross_entropy import CROSS_ENTROPY
from tridal.library.losses.linear_chunks import LAYER, chunk_rows, logits_of
from tridal.library.losses.maths import MEAN, NONE, Options, target_weights
from tridal.ops import Named, accumulator
from tridal.pytorch import call_op

Tensor = torch.Tensor


def distributed(*tensors: Any, like: Sequence[Any] = ()) -> list[Any]:
    """Returns the tensors as DTensors. A tensor that is not distributed is the same on all ranks.

    One of the tensors, or of those in `like`, is distributed.
    """
    mesh = next(tensor.device_mesh for tensor in (*tensors, *like) if isinstance(tensor, DTensor))
    whole = [Replicate()] * mesh.ndim
    return [
        tensor if tensor is None or isinstance(tensor, DTensor) else
        DTensor.from_local(tensor, mesh, whole, run_check=False)
        for tensor in tensors
    ]  # fmt: skip


def _reduced(rows: Tensor, target: DTensor, weight: DTensor | None, options: Options) -> Tensor:
    if options.reduction != MEAN:
        return rows if options.reduction == NONE else rows.sum()
    if target.is_floating_point():
        return rows.sum() / (rows.numel() if target.numel() else 0)
    full = None if weight is None else weight.full_tensor()
    local = target_weights(target.to_local(), full, options.ignore_index, rows.dtype)
    layout: dict[str, Any] = {"run_check": False, "shape": target.shape, "stride": target.stride()}
    return rows.sum() / DTensor.from_local(local, target.device_mesh, target.placements, **layout).sum()


def _losses(logits: Tensor, target: Tensor, weight: Tensor | None, options: Options, results: int = 1) -> Any:
    """Returns the loss of each row, and its log-sum-exp if there are two results."""
    of_rows, dtype = options._replace(reduction=NONE), accumulator(logits, target, weight)
    return call_op(CROSS_ENTROPY, None, (), logits, target, weight, *of_rows, dtype, results=results)


def reduced(
    input: Tensor, target: Tensor, weight: Tensor | None, options: Options, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Returns the loss of distributed logits, reduced over all ranks, and the log-sum-exp of each row."""
    x, targets, weights = distributed(input, target, weight)
    rows, lse = _losses(x, targets, weights, options, results=2)
    return _reduced(rows, targets, weights, options).to(dtype), lse


def linear_cross_entropy(named: Named) -> Tensor:
    """Returns the loss of distributed tensors, for the arguments of the registered op by name."""
    layer, options = [named[name] for name in LAYER], Options.of(named)
    targets, weights = distributed(named["target"], named["weight"], like=layer)
    (rows,) = in_chunks(named, lambda logits, target: (_losses(logits, target, weights, options),))
    return _reduced(rows, targets, weights, options).to(named["dtype"])


def in_chunks(named: Named, function: Callable[[Tensor, Tensor], Sequence[Tensor]]) -> list[Tensor]:
    """Returns function(logits, targets), which has numbers per row, for the arguments of an op of a linear layer.

    The backward computes the logits of each chunk again. Rows that are sharded over ranks are one chunk, because a
    chunk of them would have to be redistributed.
    """
    matmul_dtype = named["matmul_dtype"]
    x, matrix, bias, all_targets = distributed(*(named[name] for name in (*LAYER, "target")))
    step = named["chunk_size"] or chunk_rows(x.shape[0], matrix, matmul_dtype, named["accum_dtype"])
    step = x.shape[0] if any(placement.is_shard(0) for placement in x.placements) else step

    def of_chunk(x: Tensor, target: Tensor) -> Any:
        return function(logits_of(x, matrix, bias, matmul_dtype), target)

    chunks = [
        _again(of_chunk, x[start : start + step], all_targets[start : start + step])
        for start in range(0, max(x.shape[0], 1), max(step, 1))
    ]
    return [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*chunks, strict=True)]


def _again(function: Callable[..., Any], *tensors: Tensor) -> Any:
    """Calls a function. The backward calls it again instead of saving its tensors."""
    if torch.is_inference_mode_enabled():  # a checkpoint cannot keep its tensors
        return function(*tensors)
    return checkpoint(function, *tensors, use_reentrant=False)
