"""Overrides of a backend's plans. They make the suite run every schedule and flag that the backend supports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from tridal.devices.types import Backend, LaunchPlan, Problem

PlanOverride: TypeAlias = Callable[[LaunchPlan, Problem], LaunchPlan]
"""override(plan, problem) returns the plan to launch instead of the backend's plan for this problem."""

_WIDEST_TILE = 16_384  # number of columns that fit on chip on every device
_RESIDENT = 256  # number of small programs that run concurrently on every device with cooperative plans


def _configured(plan: LaunchPlan, problem: Problem, **fields: Any) -> LaunchPlan:
    """The plan with these config fields. The kernel is persistent and has no register limit by default."""
    defaults = {"persistent": True, "max_registers": None, "lanes": 1}
    programs = plan.programs_for(problem.tiles(plan.config.rows))
    return replace(plan, config=replace(plan.config, **{**defaults, **fields}), programs=programs)


def _whole_row(plan: LaunchPlan, problem: Problem, **flags: bool) -> LaunchPlan:
    cols = 1 << (problem.cols - 1).bit_length()
    if cols > _WIDEST_TILE or (problem.whole_rows and flags):
        return plan
    several_tiles = max(2, 1 << (problem.inner // 4).bit_length())  # more tiles would take longer and test nothing new
    rows = min(plan.config.rows, several_tiles)
    sizes = {"rows": rows, "cols": cols, "rest_cols": 0}
    return _configured(plan, problem, schedule="whole_row", programs_per_row=1, **sizes, **flags)


def _peel(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
    if problem.layout != "row" or problem.column_writes or problem.whole_rows:
        return plan
    return _whole_row(plan, problem, peel=True)


def _with_rest(plan: LaunchPlan, problem: Problem, **flags: bool) -> LaunchPlan:
    """Returns a plan whose rows have two tiles, if they have more than one column."""
    cols = 1 << (problem.cols - 1).bit_length() - 1 if problem.cols > 1 else 0
    if problem.layout == "inner" or problem.whole_rows or not 0 < cols < _WIDEST_TILE:
        return plan
    sizes = {"rows": 1, "cols": cols, "rest_cols": 1 << (problem.cols - cols - 1).bit_length()}
    return _configured(plan, problem, schedule="whole_row", programs_per_row=1, peel=False, **sizes, **flags)


def _block_cols(problem: Problem) -> int:
    """Returns a block width that divides a row into three or four blocks, if the row has more than 32 columns."""
    return max(16, (1 << (problem.cols - 1).bit_length()) // 4)


def column_loop(plan: LaunchPlan, problem: Problem, **flags: Any) -> LaunchPlan:
    """Changes the plan to a loop over blocks of columns, unless the kernel needs whole rows."""
    if problem.whole_rows:
        return plan
    fields: dict[str, Any] = {"programs_per_row": 1, "peel": False, "reload": False, "rest_cols": 0}
    return _configured(plan, problem, schedule="column_loop", **{**fields, "cols": _block_cols(problem), **flags})


def _peeled_column_loop(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
    """Returns a plan in which each program computes one tile, and peels its rows if it can."""
    peel = problem.layout == "row" and problem.statistics_only
    plan = column_loop(plan, problem, peel=peel, persistent=False)
    return plan if plan.config.persistent else replace(plan, programs=None)


def _lanes(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
    cols = max(_block_cols(problem), 4 * problem.vector)
    return plan if problem.layout == "inner" else column_loop(plan, problem, rows=1, lanes=4, cols=cols)


def _loops_together(plan: LaunchPlan, problem: Problem, reload: bool = False) -> LaunchPlan:
    """Returns a plan in which two programs loop over the three or four blocks of columns of each row."""
    made = _cooperative(plan, problem)
    if made.schedule != "cooperative" or made.config.programs_per_row < 3 or not problem.statistics:
        return plan
    lanes = 4 if problem.layout == "inner" and not problem.row_reads else 1
    config = replace(made.config, schedule="column_loop", programs_per_row=2, peel=False, reload=reload, lanes=lanes)
    return replace(made, config=config, programs=2 * min(2, problem.tiles(config.rows)))


def _cooperative(plan: LaunchPlan, problem: Problem, **flags: bool) -> LaunchPlan:
    if problem.statistics and not problem.can_exchange:
        return plan
    cols = _block_cols(problem)
    rows = 1 if problem.layout == "row" else min(plan.config.rows, 8)
    sizes = {"rows": rows, "cols": cols, "rest_cols": 0, "programs_per_row": -(-problem.cols // cols)}
    plan = _configured(plan, problem, schedule="cooperative", **sizes, **flags)
    return replace(plan, programs=min(2, problem.tiles(rows)) * plan.config.programs_per_row)


def _one_shot(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
    """Returns a cooperative plan in which each program computes one column block of one row, without a loop."""
    one_shot = _cooperative(plan, problem, persistent=False)
    rows, programs_per_row = one_shot.config.rows, one_shot.config.programs_per_row
    most = _RESIDENT * min(2, plan.occupancy or 2) // 2  # the checks of a plan expect its occupancy
    resident = problem.tiles(rows) * programs_per_row <= most
    return replace(one_shot, programs=None) if rows == 1 and programs_per_row > 1 and resident else plan


PLAN_OVERRIDES: Mapping[str, PlanOverride | None] = {
    "planned": None,
    "whole_row": _whole_row,
    "cooperative": _cooperative,
    "column_loop": column_loop,
    "whole_row+peel": _peel,
    "column_loop+peel": _peeled_column_loop,
    "column_loop+lanes": _lanes,
    "column_loop+cooperative": _loops_together,
    "column_loop+cooperative+reload": partial(_loops_together, reload=True),
    "whole_row+reload": partial(_whole_row, reload=True),
    "whole_row+rest_cols": _with_rest,
    "whole_row+rest_cols+reload": partial(_with_rest, reload=True),
    "cooperative+reload": partial(_cooperative, reload=True),
    "cooperative+one_shot": _one_shot,
    "single": lambda plan, problem: replace(_configured(plan, problem), programs=plan.config.programs_per_row),
}
"""The overrides by name. "planned" is the backend's plan, and "single" launches one program for all tiles."""


def overrides(backend: Backend) -> tuple[str, ...]:
    """Returns the names of the overrides whose schedules and features the backend supports, except "planned".

    Example:
        >>> "column_loop" in tridal.testing.overrides(tridal.registry.get("interpreter"))
        True
    """
    supported = backend.schedules | backend.features | {"single", "one_shot"}
    return tuple(name for name in PLAN_OVERRIDES if set(name.split("+")) <= supported)
