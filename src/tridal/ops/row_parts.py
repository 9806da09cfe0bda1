"""The two launches of an op whose rows are in parts: the statistics of a part, and the results from those of all."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tridal.kernels.function_caches import cached_by_functions
from tridal.kernels.op_functions import triton_functions
from tridal.kernels.row_kernel import RowKernel
from tridal.ops.arguments import Result, per_row
from tridal.ops.op import Op
from tridal.ops.signature import Signature

MAX_PARTS = 8
"""The most parts of a row. A kernel reads one or two numbers per row of each part."""


class RowParts(NamedTuple):
    """The signatures of the two launches."""

    statistics: Signature | None
    """Its results are the statistics of a part of each row. None if the kernel has no statistics."""
    results: Signature
    """It also takes the statistics of each part, in the order of the parts."""


@cached_by_functions
def row_parts(op: Op, signature: Signature, parts: int) -> RowParts | None:
    """Returns the launches of an op or of its gradient, or None if its kernel needs whole rows.

    Raises:
        PluginError: see `triton_functions`.
    """
    kernel, roles = signature.kernel, [a.role for a in signature.arguments] + [r.role for r in signature.results]
    if kernel is None or signature.steps is not None or op.unsupported is not None or any(map(callable, roles)):
        return None
    if not _has_parts(kernel):
        return None
    if not kernel.statistics:
        return RowParts(None, signature)
    if len(kernel.statistics) > 2 or not 1 < parts <= MAX_PARTS:
        return None
    arguments = tuple(a for a in signature.arguments if a.name not in ("output_mask", kernel.added))
    main = arguments.index(signature.arguments[signature.main])
    of_part = tuple(Result(statistic.name, "row") for statistic in kernel.statistics)
    statistics = replace(signature, arguments=arguments, results=of_part, kernel=kernel.part_of_row(), main=main)
    merging = kernel.of_parts(parts)
    added = tuple(map(per_row, merging.row_reads[len(kernel.row_reads) :]))
    return RowParts(statistics, replace(signature, arguments=(*signature.arguments, *added), kernel=merging))


def _has_parts(kernel: RowKernel) -> bool:
    """Returns whether no function of a kernel uses where a part of a row begins, or how long it or its row is."""
    if kernel.whole_rows or kernel.row_index is not None:
        return False
    declared = {name for function in triton_functions(kernel) for name in function.arg_names}
    return declared.isdisjoint({"column", "count", "part_count"})
