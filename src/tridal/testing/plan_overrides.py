"""Overrides of a backend's plans. With them the suite runs every schedule and flag that the backend supports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias, cast

from tridal.devices.types import SCHEDULES, Backend, KernelConfig, LaunchPlan, Problem, Schedule

PlanOverride: TypeAlias = Callable[[LaunchPlan, Problem], LaunchPlan]
"""override(plan, problem) returns the plan to launch instead of the backend's plan for this problem."""

_WIDEST_TILE = 16_384  # columns that every device holds on chip
_RESIDENT = 256  # small programs that every device runs at the same time, if it supports cooperative plans


def _scheduled(schedule: Schedule) -> PlanOverride:
    def override(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
        width = _power_of_two(problem.cols)
        config = replace(_persistent(plan.config), schedule=schedule, programs_per_row=1)
        if schedule == "whole_row":
            if width > _WIDEST_TILE:
                return plan
            return replace(plan, config=replace(config, cols=width, rows=_few_rows(plan, problem)))
        cols = max(16, width // 4)  # three full blocks of columns and a partial one
        if schedule == "column_loop" or problem.accumulator == 8:  # cooperative plans do not support float64
            return replace(plan, config=replace(config, schedule="column_loop", peel=False, cols=cols))
        programs_per_row = -(-problem.cols // cols)
        rows = 1 if problem.layout == "row" else min(plan.config.rows, 8)
        config = replace(config, rows=rows, cols=cols, programs_per_row=programs_per_row)
        return replace(plan, config=config, programs=2 * programs_per_row)

    return override


def _few_rows(plan: LaunchPlan, problem: Problem) -> int:
    """Returns a number of rows per tile that gives several tiles. More tiles would take longer and test nothing new."""
    return min(plan.config.rows, max(2, 1 << (problem.inner // 4).bit_length()))


def _peel(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
    width = _power_of_two(problem.cols)
    if problem.layout != "row" or width > _WIDEST_TILE:
        return plan
    config, rows = _persistent(plan.config), _few_rows(plan, problem)
    config = replace(config, schedule="whole_row", programs_per_row=1, peel=True, cols=width, rows=rows)
    return replace(plan, config=config)


def _reload(schedule: Schedule) -> PlanOverride:
    def override(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
        plan = _scheduled(schedule)(plan, problem)
        return replace(plan, config=replace(plan.config, reload=True)) if plan.schedule == schedule else plan

    return override


def _one_shot(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
    """A cooperative plan in which each program computes one part of one row, and does not loop."""
    cooperative = _scheduled("cooperative")(plan, problem)
    config = cooperative.config
    programs = problem.rows * config.programs_per_row
    if config.rows > 1 or config.programs_per_row == 1 or programs > _RESIDENT:
        return plan
    return replace(cooperative, config=replace(config, persistent=False), programs=programs)


def _single_program(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
    return replace(plan, programs=plan.config.programs_per_row, config=_persistent(plan.config))


def _persistent(config: KernelConfig) -> KernelConfig:
    """Returns the configuration for any number of programs, without a limit on registers."""
    return replace(config, persistent=True, max_registers=None)


def _power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()


PLAN_OVERRIDES: Mapping[str, PlanOverride | None] = {
    "planned": None,
    **{schedule: _scheduled(cast(Schedule, schedule)) for schedule in SCHEDULES},
    "peel": _peel,
    "reload": _reload("whole_row"),
    "cooperative+reload": _reload("cooperative"),
    "cooperative+one_shot": _one_shot,
    "single": _single_program,
}
"""The overrides by name. "planned" is the backend's plan, and "single" launches one program for all tiles."""


def overrides(backend: Backend) -> tuple[str, ...]:
    """Returns the names of the overrides whose schedules and features the backend supports, except "planned"."""
    supported = backend.schedules | {"single", "one_shot"}
    return tuple(name for name in PLAN_OVERRIDES if set(name.split("+")) <= supported)
