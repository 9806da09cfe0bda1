"""Checks that the plans of a backend hold for the rows of their `row_range`, at its ends and at random rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tridal.devices.types import LaunchPlan, Problem


def range_fault(plan: LaunchPlan, problem: Problem, plan_for: Callable[[Problem], LaunchPlan]) -> str | None:
    """Returns a description of a row count in the range whose plan is another one, or None if the range holds.

    `plan_for(problem)` returns the backend's plan. An exception counts as another plan.
    """
    if plan.row_range is None:
        return None
    first, last = plan.row_range
    generator = random.Random(repr(problem))
    near = max(first, problem.inner // 2), min(last, 2 * problem.inner)
    for rows in dict.fromkeys((first, last, generator.randint(first, last), generator.randint(*near))):
        try:
            other = plan_for(replace(problem, inner=rows))
        except Exception as error:
            found = f"raises {type(error).__name__}: {error}"
        else:
            programs = plan.programs_for(problem, rows)
            if (other.config, other.programs) == (plan.config, programs):
                continue
            found = f"has {other.programs} programs with {other.config}, not {programs} with {plan.config}"
        return (
            f"the plan for {problem.inner} rows has row_range = {plan.row_range}, but the plan for {rows} rows {found}"
        )
    return None
