"""The names that tensors, numbers and statistics cannot have, because all functions or schedules use them."""

from __future__ import annotations

import functools
import keyword
from collections import Counter

from tridal.kernels.row_kernel import RowKernel

RESERVED = frozenset({
    "count", "part_count", "column", "in_bounds", "picked", "part_scale", "AXIS", "EXP2_BIAS", "REFINE", "UNNORMALIZED",
    "GUARD", "ZERO_MASKED_ROWS",
})  # fmt: skip
"""The parameters of functions that have a meaning in every kernel, see `tridal.kernels.op_functions`."""
SCHEDULE_NAMES = frozenset({
    "after_picked", "await_claim", "begin", "begin_chunk", "block", "block_stride", "body", "body_chunk", "chunk",
    "claim", "claimed", "clear_slots", "collect", "cols", "column_block", "column_chunk", "column_edge",
    "column_top", "columns", "columns_chunk", "columns_rest", "counted", "edge", "edge_count", "end", "first_tile",
    "flat", "float", "group", "groups", "has_edge", "head", "head_edge", "heads", "in_bounds_chunk",
    "in_bounds_edge", "in_bounds_rest", "in_bounds_top", "in_col", "in_inner", "in_jump", "in_outer", "in_row",
    "inner", "is_column", "is_later_tile", "is_top", "iteration", "last", "mask", "mask_at", "mask_batch",
    "mask_col", "mask_head", "mask_query", "merge_lanes", "minor_blocks", "misalignment", "narrow_index",
    "next_claim", "number", "number_top", "op_math", "out_col", "out_inner", "out_jump", "out_outer", "out_row",
    "outer", "picked_at", "picked_column", "publish", "queries", "query", "rank", "read_claim", "rebase_statistic",
    "reduce_lanes", "release_group", "repeat_lanes", "row", "row_at", "row_in_bounds", "row_index", "row_inner",
    "row_number", "row_outer", "rows", "rows_edge", "scale", "score_mask", "split_lanes", "sum_column",
    "sum_column_rest", "tail", "third_col", "third_inner", "third_jump", "third_outer", "third_row", "tile",
    "tiles", "tl", "top_at", "top_column", "top_columns", "top_row", "top_value", "triton", "unused", "workspace",
    "zero",
})  # fmt: skip
"""The variables, arguments and functions of written kernels that are not named by the op."""
_VARIABLES = {
    "reads": ("{}_ptr", "{}", "{}_edge", "{}_rest", "{}_chunk", "{}_top"),
    "added": ("{}_ptr", "{}", "{}_edge", "{}_rest", "{}_chunk"),
    "row_reads": ("{}_ptr", "{}"), "row_index": ("{}_ptr", "{}"), "top_reads": ("{}_ptr", "{}"),
    "top_index": ("{}_ptr", "{}"), "top_writes": ("{}_per_top",),
    "column_reads": ("{}_ptr", "{}", "{}_edge", "{}_rest", "{}_chunk", "{}_top"), "parameters": ("{}_number",),
    "writes": ("{}_result", "{}_at", "{}_at_edge", "{}_at_rest", "{}_at_chunk"), "row_writes": ("{}_per_row",),
    "column_writes": ("{}_sums", "{}_at", "{}_at_rest", "sum_of_{}", "sum_of_{}_rest"), "row_value": ("{}",),
}  # fmt: skip
"""The variables of a schedule for a name in each field of `RowKernel`."""


def names_fault(kernel: RowKernel) -> str | None:
    """Returns why a kernel cannot have one of its names, or None if it can."""
    for name in kernel.names:
        if not name.isidentifier() or keyword.iskeyword(name):
            return f"kernel {kernel.name!r}: expected a name of Python's syntax, found {name!r}"
        if name in RESERVED or name in _derived(kernel):
            return f"kernel {kernel.name!r}: the functions of all kernels get {name!r}: choose another name"
        if name.isupper() and name not in {constant for constant, _ in kernel.constants}:
            return f"kernel {kernel.name!r}: names in capitals are constants: rename {name!r}"
    variables = _variables(kernel)
    counted = Counter(variable for variable, _ in variables)
    for variable, name in sorted(variables):
        if variable in SCHEDULE_NAMES or counted[variable] > 1:
            return f"kernel {kernel.name!r}: schedules have another variable {variable!r}: rename {name!r}"
    return None


@functools.lru_cache(maxsize=1024)
def taken_names(kernel: RowKernel) -> frozenset[str]:
    """Returns the variables of a written kernel, without those for the results of functions."""
    return frozenset({*RESERVED, *SCHEDULE_NAMES, *_derived(kernel), *(variable for variable, _ in _variables(kernel))})


def _derived(kernel: RowKernel) -> list[str]:
    first = [f"part_{statistic.name}" for statistic in kernel.statistics[:1]]
    return [*first, *(f"picked_{name}" for name in kernel.column_reads[:1])]


def _variables(kernel: RowKernel) -> set[tuple[str, str]]:
    """Each variable of a kernel, with the name that it belongs to."""
    found = {(form.format(s.name), s.name) for s in kernel.statistics for form in ("{}", "{}_edge", "{}_rest")}
    return found | {
        (form.format(name), name)
        for field, forms in _VARIABLES.items()
        for name in kernel.named(field)
        for form in forms
    }
