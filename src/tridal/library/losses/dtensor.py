"""Cross-entropy of DTensors: the losses of rows by the op, and their reduction over ranks by torch's ops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils.checkpoint import checkpoint

from tridal.library.losses.cross_entropy import CROSS_ENTROPY
from tridal.library.losses.linear_chunks import LAYER, chunk_rows, logits_of
from tridal.library.losses.loss_math import MEAN, NONE, Options, target_weights
from tridal.ops import Named, accumulator, wrong
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


def check_input(op: str, input: Tensor, linear_weight: Tensor) -> None:
    """Raises TypeError if only the weight is a DTensor, as torch's matmul does.

    Under FSDP2, each rank has other rows. The input would be taken for the same rows on all ranks.
    """
    if isinstance(linear_weight, DTensor) and not isinstance(input, DTensor):
        hint = "under FSDP2, first call unshard() of the module that has the weight. See docs/trainers.md"
        raise TypeError(wrong(op, "input", "be a DTensor, because linear_weight is one", "a plain tensor", hint))


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


def in_chunks(
    named: Named, function: Callable[..., Sequence[Tensor | None]], per_row: Sequence[str] = ("target",),
    saves_logits: bool = False,
) -> list[Any]:  # fmt: skip
    """Returns function(logits, *tensors), which has numbers per row or None, for the arguments of an op of a layer.

    `per_row` are the names of the tensors with numbers per row. The backward computes the logits of each chunk again,
    unless it saves them. Rows that are sharded over ranks are one chunk, because a chunk of them would have to be
    redistributed.
    """
    matmul_dtype = named["matmul_dtype"]
    x, matrix, bias, *tensors = distributed(*(named[name] for name in (*LAYER, *per_row)))
    step = named["chunk_size"] or chunk_rows(x.shape[0], matrix, matmul_dtype, named["accum_dtype"])
    step = x.shape[0] if any(placement.is_shard(0) for placement in x.placements) else step

    def of_chunk(x: Any, *tensors: Tensor | None) -> Any:
        return function(logits_of(x, matrix, bias, matmul_dtype), *tensors)

    run = of_chunk if saves_logits else functools.partial(_again, of_chunk)
    chunks = [
        run(x[start : start + step], *(None if t is None else t[start : start + step] for t in tensors))
        for start in range(0, max(x.shape[0], 1), max(step, 1))
    ]
    return [
        torch.cat(parts) if len(parts) > 1 and parts[0] is not None else parts[0] for parts in zip(*chunks, strict=True)
    ]


def gather(logits: Any, columns: Any) -> Any:
    """Returns logits.gather(-1, columns). If classes are sharded, ranks exchange these numbers only."""
    mesh, last = logits.device_mesh, logits.dim() - 1
    placements = [Replicate() if placement.is_partial() else placement for placement in logits.placements]
    logits = logits.redistribute(mesh, placements)
    of_rows = [Replicate() if placement.is_shard(last) else placement for placement in placements]
    of_columns = [Shard(0) if placement.is_shard(last) else Replicate() for placement in placements]
    whole = torch.arange(logits.shape[-1], device=columns.device)
    shard: Any = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    own = shard.redistribute(mesh, of_columns).to_local()
    index, local = columns.redistribute(mesh, of_rows).to_local(), logits.to_local()
    if local.shape[-1]:
        index = index - own[:1]
        inside = (index >= 0) & (index < local.shape[-1])
        found = local.gather(-1, index.clamp(0, local.shape[-1] - 1)).masked_fill(~inside, 0.0)
    else:
        found = local.sum(-1, keepdim=True).expand(index.shape)
    partial = [Partial() if placement.is_shard(last) else placement for placement in placements]
    layout: dict[str, Any] = {"run_check": False, "shape": columns.shape, "stride": columns.stride()}
    return DTensor.from_local(found, mesh, partial, **layout).redistribute(mesh, of_rows)


def _again(function: Callable[..., Any], *tensors: Tensor | None) -> Any:
    """Calls a function. The backward calls it again instead of saving its tensors."""
    if torch.is_inference_mode_enabled():  # a checkpoint cannot keep its tensors
        return function(*tensors)
    return checkpoint(function, *tensors, use_reentrant=False)
