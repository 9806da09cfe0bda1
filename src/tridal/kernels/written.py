"""The text of a kernel: what its schedule writes, and the files with functions that it calls."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tridal.kernels.column_loop import column_loop
from tridal.kernels.pieces import Writer
from tridal.kernels.row_kernel import RowKernel
from tridal.kernels.text_plan import TextPlan
from tridal.kernels.trial import trial
from tridal.kernels.whole_row import whole_row

_SCHEDULES: dict[str, Callable[[Writer], None]] = {"whole_row": whole_row, "column_loop": column_loop, "trial": trial}
_HELPERS = {
    "exchange": {"collect"}, "tile_counter": {"release_group"}, "row_index": {"narrow_index"}, "lanes": {"split_lanes"},
    "top": {"top_columns"},
}  # fmt: skip
"""A file of this folder, and functions of it, one of which is called wherever the file is needed."""


class WrittenKernel:
    """The text of a kernel.

    Attributes:
        text: the kernel, and the function with which its exchange rebases statistics.
        helpers: for each file with functions that it calls: the name of the file, and its text.
        constants: the constants that these files use.
    """

    def __init__(self, kernel: RowKernel, entry: str, arguments: tuple[str, ...], constants: dict[str, Any]) -> None:
        """Writes a kernel.

        Arguments:
            entry: the function that writes it: "whole_row", "column_loop" or "trial".
            arguments: the names of its run-time arguments. The text lacks numbers that it does not use.
            constants: those of its specialization.

        Raises:
            PluginError: see `tridal.kernels.op_functions.declared_by` and `constants_of`.
        """
        plan = TextPlan(kernel, constants, frozenset(arguments), loops=entry == "column_loop")
        writer = Writer(plan)
        with writer:
            _SCHEDULES[entry](writer)
        used = set(re.findall(r"\b[a-z]\w*", str(writer)))
        names = [name for name in arguments if name in used or name in kernel.pointers]
        schedule = "cooperative" if plan.rank and entry == "whole_row" else entry
        start = Writer(plan)
        start("@triton.jit")
        with start(f"def {entry}({', '.join(names)}):"):
            start(f'"""{kernel.name}, by the schedule {schedule}."""')
        self.text = str(start) + str(writer)
        self.helpers = {
            file: helper_text(file, tuple(plan.rebase_numbers))
            for file, functions in _HELPERS.items()
            if functions & used
        }
        capitals = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", "".join(self.helpers.values())))
        self.constants = {name: value for name, value in plan.constants.items() if name in capitals | {"report"}}
        if plan.exchange:
            self.text += f"\n\n{_rebase(plan)}"


def _rebase(plan: TextPlan) -> str:
    """Writes the function that the exchange calls to adapt the second statistic of a part to the whole row."""
    statistics, second = plan.kernel.statistics[:2], "second"
    if len(statistics) > 1 and (name := statistics[1].rebase) is not None:
        first = statistics[0].name
        other = {statistics[1].name: "second", first: "first", f"part_{first}": "part_first"}
        second = plan.call("rebase", name, statistic=1, other=other)
    arguments = ", ".join(["second", "part_first", "first", "part_count", "count", *plan.rebase_numbers])
    writer = Writer(plan)
    writer("@triton.jit")
    with writer(f"def rebase_statistic({arguments}):"):
        writer("return SECOND", SECOND=second)
    return str(writer)


@functools.lru_cache(maxsize=64)
def helper_text(file: str, parameters: tuple[str, ...]) -> str:
    """Reads a file of this folder. `*parameters` in it becomes these parameters."""
    text = Path(__file__).with_name(f"{file}.py").read_text()
    return text.replace(", *parameters", "".join(f", {name}" for name in parameters))
