"""Invariants of CUDA plans: what has to hold for every plan with every compiler."""

from __future__ import annotations

import plan_invariants
from tridal.devices.types import DeviceProperties, LaunchPlan, Problem
from tridal_cuda.resources import occupancy
from tridal_cuda.tuning import MAX_SPILL, MAX_SPILL_RELOAD


def check_plan(problem: Problem, device: DeviceProperties, plan: LaunchPlan) -> None:
    """Asserts what has to hold for every plan with every compiler: it fits, it covers the rows, and it says why."""
    plan_invariants.check_plan(problem, device, plan)
    config = plan.config
    assert plan.resources is not None
    assert plan.occupancy, "one program fits on a multiprocessor"
    assert config.rows < 2 * problem.inner, "at least half of the rows of a tile are rows of a block"
    assert plan.occupancy == occupancy(config, plan.resources, device)[0]
    if config.schedule == "cooperative" and not config.persistent:
        assert plan.resources.spills <= MAX_SPILL
    if config.schedule == "whole_row" and config.reload and problem.layout == "row" and config.cols > 8192:
        assert plan.resources.spills <= MAX_SPILL_RELOAD
    check_reason(problem, device, plan)


def check_reason(problem: Problem, device: DeviceProperties, plan: LaunchPlan) -> None:
    """Asserts that the reason gives the limits of the occupancy, the programs, the tiles, and the spills."""
    assert plan.resources is not None
    config, resources, reason = plan.config, plan.resources, plan.reason
    registers = -(-resources.registers // 8) * 8
    programs = 65_536 // (registers * 32 * config.num_warps)
    assert f"occupancy {plan.occupancy} = min(" in reason
    assert f"registers 65536//({registers}*32*{config.num_warps})={programs}" in reason
    assert f"{device.cores} SMs x {plan.occupancy} = {device.cores * (plan.occupancy or 0)} resident programs" in reason
    assert f"{problem.rows} rows in {problem.tiles_of(config)} tiles of {config.rows} x {config.cols}: " in reason
    assert (f"{resources.spills} bytes per thread are spilled" in reason) == (resources.spills > 0)
