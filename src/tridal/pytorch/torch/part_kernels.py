"""Kernels of rows that are sharded over ranks. Ranks exchange the statistics of their parts of each row once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tridal.ops.op import Op
from tridal.ops.row_parts import row_parts
from tridal.ops.signature import Arguments, Signature
from tridal.pytorch.device_context import backend_computes, device_context
from tridal.pytorch.path.call import CALLS, Results, store
from tridal.pytorch.path.keys import key_function, most_rows
from tridal.pytorch.path.op_calls import call_by_kernels
from tridal.pytorch.path.state import is_plain
from tridal.pytorch.torch import private

Groups = Sequence[tuple[str, int]]
"""The names and the sizes of process groups."""


def kernels_of_parts(op: Op, shards: Arguments, columns: int, groups: Groups) -> Callable[..., Results] | None:
    """Returns run(*shards), which computes an op or its gradient for rows of which each rank has a part.

    Returns None if kernels do not compute them. All ranks decide alike: by the shape of the whole tensor, by dtypes,
    and by the backend.

    Args:
        shards: the arguments, with shards in the place of tensors.
        columns: the number of elements of a whole row.
        groups: the process groups over which the columns are sharded, in order.
    """
    context, signature = device_context(shards.main.device), shards.signature
    if context.backend is None or shards.blocks or not _all_have_columns(columns, groups):
        return None
    if not math.prod(shards.shapes["row"]):
        return None
    found = row_parts(op, signature, math.prod(size for _, size in groups))
    dtypes = {*shards.dtypes, *(tensor.dtype for tensor in shards.tensors if tensor is not None)}
    if found is None or not backend_computes(context, {dtype for dtype in dtypes if dtype.is_floating_point}):
        return None
    compute, of_part = launcher(op, found.results, shards.numbers), found.statistics
    if of_part is None:
        return compute
    kept = [i for i, position in enumerate(signature.tensors) if signature.names[position] in of_part.names]
    reduce = launcher(op, of_part, [shards.named[of_part.names[position]] for position in of_part.numbers])

    def run(*tensors: Any) -> Results:
        gathered = torch.stack(reduce(*(tensors[i] for i in kept)))  # type: ignore[arg-type]
        for group, size in groups:
            gathered = private.all_gather(gathered, size, group)
        return compute(*tensors, *gathered.unbind())

    return run


def traced(shards: Sequence[Any]) -> bool:
    """Returns whether torch has to see the ops of a call, which kernels hide.

    Modes that only observe ops may differ between the ranks, which have to exchange the same.
    """
    plain = all(shard is None or is_plain(shard) for shard in shards)
    return not plain or private.traces() or private.transforms_active() or private.tracing_state() is not None


def _all_have_columns(columns: int, groups: Groups) -> bool:
    """Returns whether each rank has elements of each row. `torch.chunk` gives all ranks but the last ones as many."""
    sizes = {columns}
    for _, ranks in groups:
        sizes = {size for n in sizes for size in (-(-n // ranks), n - -(-n // ranks) * (ranks - 1))}
    return min(sizes) > 0


def launcher(op: Op, signature: Signature, numbers: Sequence[Any]) -> Callable[..., Results]:
    """Returns launch(*tensors), which launches the kernel of a signature."""
    key_of, positions = key_function(signature), signature.tensors
    values = Arguments.of(signature, [None] * len(positions), numbers).values

    def launch(*tensors: Any) -> Results:
        given = [*values]
        for position, tensor in zip(positions, tensors, strict=True):
            given[position] = tensor
        key = key_of(signature, *given)
        if (call := CALLS.get(key)) is None:
            context, arguments = device_context(given[signature.main].device), Arguments(signature, given)
            call = call_by_kernels(context, op, arguments, len(signature.results), most_rows(key))
            store(key, call, context)
        return call.run(*tensors)  # type: ignore[no-any-return]

    return launch
