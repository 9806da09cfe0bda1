"""The names that tensors, numbers and statistics cannot have, because all functions or schedules use them."""

from __future__ import annotations

import functools
import keyword
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from tridal.runtime.row_kernel import RowKernel

RESERVED = frozenset({
    "count", "part_count", "column", "in_bounds", "picked", "part_scale", "AXIS", "EXP2_BIAS", "REFINE", "UNNORMALISED",
    "GUARD", "ZERO_MASKED_ROWS",
})  # fmt: skip
"""The parameters of functions that have a meaning in every kernel, see `tridal.runtime.op_functions`."""
_WRITTEN = ("{}_result", "{}_result_at", "edge_{}_result_at")
_VARIABLES = {
    "reads": ("{}_ptr", "{}_tile", "{}_loaded", "{}_at", "edge_of_{}", "edge_{}_at"),
    "added": ("{}_ptr",), "row_reads": ("{}_ptr", "{}_row"), "row_index": ("{}_ptr",),
    "column_reads": ("{}_ptr", "{}_column", "edge_of_{}"), "parameters": ("{}_number",), "writes": _WRITTEN,
    "row_writes": ("{}_per_row",), "column_writes": ("{}_sums", "sums_of_{}"),
}  # fmt: skip
"""The variables of a schedule for a name in each field of `RowKernel`."""


def names_fault(kernel: RowKernel) -> str | None:
    """Returns why a kernel cannot have one of its names, or None if it can."""
    derived = [f"part_{statistic.name}" for statistic in kernel.statistics[:1]]
    derived += [f"picked_{name}" for name in kernel.column_reads[:1]]
    for name in kernel.names:
        if not name.isidentifier() or keyword.iskeyword(name):
            return f"kernel {kernel.name!r}: expected a name of Python's syntax, found {name!r}"
        if name in RESERVED or name in derived:
            return f"kernel {kernel.name!r}: the functions of all kernels get {name!r}: choose another name"
    fields = {field: getattr(kernel, field) or () for field in _VARIABLES}
    fields |= {field: (value,) for field, value in fields.items() if isinstance(value, str)}
    variables = {(form.format(n), n) for field, names in fields.items() for n in names for form in _VARIABLES[field]}
    counted = Counter(variable for variable, _ in variables)
    for variable, name in sorted(variables):
        if variable in _schedule_names() or counted[variable] > 1:
            return f"kernel {kernel.name!r}: schedules have another variable {variable!r}: rename {name!r}"
    return None


@functools.cache
def _schedule_names() -> frozenset[str]:
    """Returns all names in the sources of the schedules, which are not imported."""
    spec = find_spec("tridal.kernels")
    folders = () if spec is None else spec.submodule_search_locations or ()
    texts = [file.read_text() for folder in folders for file in Path(folder).glob("*.py")]
    return frozenset(name for text in texts for name in re.findall(r"\b[a-z]\w*", text))
