"""DTensor rules of rms_norm and layer_norm.

If only dims of rows are sharded, each rank computes its own rows, and gradients of parameters are `Partial`. If a
normalised dim is sharded, each rank computes the op's reference on its shard, and the ranks exchange one number per row
for each statistic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from tridal.errors import DTypeError
from tridal.ops.fused_op import FusedOp
from tridal.pytorch.call_records import RECORDERS, record_torch
from tridal.pytorch.dtensor import ShardedReduce, from_shards, redistributed
from tridal.pytorch.fused_ops import Results
from tridal.pytorch.norm_kernels import LAYER_NORM_RULES, RMS_NORM_RULES
from tridal.pytorch.op_call import overload
from tridal.pytorch.registered_ops import on_dispatch

_WHOLE: Placement = Replicate()


class _Layout(NamedTuple):
    """How the tensors of a call are placed. Each placement has an entry for each mesh dim."""

    elements: list[Placement]
    """The placements of tensors with the input's shape."""
    rows: list[Placement]
    """The placements of tensors with a number per row."""
    columns: list[Placement]
    """The placements of parameters."""
    column_sums: list[Placement]
    """The placements of gradients of parameters."""
    axes: list[int]
    """The mesh dims over which a normalised dim is sharded."""


def _layout(x: DTensor, dims: int) -> _Layout:
    first = x.dim() - dims
    layout = _Layout([], [], [], [], [])
    for axis, placement in enumerate(x.placements):
        element, row, column, column_sum = placement, _WHOLE, _WHOLE, _WHOLE
        if type(placement) is not Shard:  # a norm is not linear, so a partial placement is reduced before it
            element = _WHOLE
        elif placement.dim < first:
            row, column_sum = placement, Partial()
        else:
            column = column_sum = Shard(placement.dim - first)
            layout.axes.append(axis)
        for placements, new in zip(layout[:4], (element, row, column, column_sum), strict=True):
            placements.append(new)
    return layout


def _rule(op: FusedOp, name: str, reference: Callable[..., Results], kinds: str, results: str) -> Any:
    """Returns the rule of a registered op.

    `kinds` and `results` have a letter for each tensor among the arguments and the results: e for a number per element,
    r per row, c per column, s for a sum over rows per column.
    """
    backward = name != op.name
    main = kinds.rindex("e") if backward else 0

    def compute(cls: type, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> tuple[torch.Tensor, ...]:
        x, dims, count = args[main], args[len(kinds)], len(kinds)
        for tensor in args[:count]:
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, DTensor):
                raise DTypeError(f"{name} got both DTensors and other tensors: distribute all of them")
        layout, mesh, shape = _layout(x, dims), x.device_mesh, x.shape
        placements = {"e": layout.elements, "r": layout.rows, "c": layout.columns, "s": layout.column_sums}
        local: list[Any] = list(args)
        for index, kind in enumerate(kinds):
            if kind == "e" and args[index] is not None and args[index].shape != shape:
                local[index] = None  # the gradient of a sum that the call does not have
            elif args[index] is not None:
                local[index] = redistributed(args[index], mesh, placements[kind]).to_local()
        if layout.axes:
            if RECORDERS:
                record_torch(name, local[main], "the rows are sharded over ranks")
            rows = ShardedReduce(math.prod(shape[len(shape) - dims :]), -1, mesh, layout.axes)
            found = reference(*local, rows=rows)
        else:
            found = overload(name)(*local)
        shapes = {"e": shape, "r": shape[: len(shape) - dims], "s": shape[len(shape) - dims :]}

        absent = [not needed for needed in args[-1]] if backward else [False, args[1] is None, *[False] * len(results)]

        def wrapped(result: Any, kind: str, is_absent: bool) -> torch.Tensor:
            if is_absent:
                return from_shards(local[main].new_empty(0), mesh, [_WHOLE] * mesh.ndim, (0,))
            return from_shards(result.contiguous(), mesh, placements[kind], shapes[kind])

        return tuple(map(wrapped, found, results, absent))

    return compute


for _rules, _forward, _backward in (
    (RMS_NORM_RULES, ("eec", "eer"), ("eeerc", "es")),
    (LAYER_NORM_RULES, ("eecc", "eerr"), ("eeerrc", "ess")),
):
    _op = _rules.op
    on_dispatch(_op.name, DTensor, _rule(_op, _op.name, _op.reference, *_forward))
    on_dispatch(f"{_op.name}_backward", DTensor, _rule(_op, f"{_op.name}_backward", _op.gradient, *_backward))
