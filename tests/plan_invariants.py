"""Invariants of the plans of every GPU: tiles cover the rows, and programs compute all tiles and fit on the device."""

from __future__ import annotations

from tridal.devices.types import DeviceProperties, LaunchPlan, Problem


def check_plan(problem: Problem, device: DeviceProperties, plan: LaunchPlan) -> None:
    """Asserts what has to hold for every plan, whatever the compiler reports."""
    config, tiles = plan.config, problem.tiles_of(plan.config)
    for size in (config.rows, config.cols, config.num_warps):
        assert size & (size - 1) == 0 < size
    assert config.num_warps * (device.warp_size or 0) <= 1024
    assert config.rows * config.cols <= 1 << 20, "Triton allows no larger tensor"
    assert plan.occupancy is not None

    cols_in_tiles = problem.cols // problem.vector * problem.vector if config.peel else problem.cols
    assert not config.peel or (problem.layout == "row" and not problem.aligned)
    if config.schedule == "cooperative":
        assert config.programs_per_row > 1
        assert config.cols * config.programs_per_row >= cols_in_tiles
        assert plan.programs % config.programs_per_row == 0
        assert plan.programs <= device.cores * plan.occupancy, "all programs are resident at once"
        assert problem.accumulator == 4, "float64 statistics do not fit in one word"
    else:
        assert config.programs_per_row == 1
        assert config.schedule == "column_loop" or config.cols >= cols_in_tiles
    assert 1 <= plan.programs <= tiles * config.programs_per_row
    assert config.persistent or plan.programs == tiles * config.programs_per_row
