"""The numbers of a launch that follow from the number of rows, or of columns of one row.

They are programs, scalar arguments and the length of the workspace.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

from tridal.devices.types import LaunchPlan
from tridal.runtime.specialization import KernelCall

Count: TypeAlias = Callable[[int], int]
"""count(rows) returns a number for a number of rows, or of columns if the launch serves several of them."""
_remember = functools.lru_cache(maxsize=64)  # a lookup takes less than 0.1 us


class RowNumbers:
    """The range of row counts that a planned call serves, and its numbers for each of them.

    If the range is one row count, the numbers are those of the plan and of the call for any argument.
    """

    def __init__(self, call: KernelCall, plan: LaunchPlan) -> None:
        problem = call.problem
        self.row_range = first, last = call.row_range(plan)
        """The first and the last number of rows."""
        self.varies = first < last
        """Whether the range is more than one row count."""
        self.column_range = call.column_range(plan)
        """The first and the last number of columns, or None if it serves one number of columns."""
        self.scalars: dict[str, Count] = {}
        """The scalar arguments of the kernel that differ within the range, by name."""

        def programs(rows: int) -> int:
            return plan.programs_for(problem, rows) if self.varies else plan.programs

        def workspace_slots(rows: int) -> int:
            return call.workspace_slots(plan, rows if self.varies else None)

        def groups(rows: int) -> int:
            return self.programs(rows) // plan.config.programs_per_row

        self.programs: Count = _remember(programs)
        self.groups: Count = groups
        self.workspace_slots: Count = _remember(workspace_slots)
        if self.column_range is not None:
            self.scalars["cols"] = int
        if self.varies:
            self.scalars["inner"] = int  # the fastest identity
