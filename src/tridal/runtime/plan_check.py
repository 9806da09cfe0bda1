"""Checks a launch plan against everything that the schedules assume. Runs once for each plan. Arithmetic only.

A violation is an error, because such a plan gives wrong results, reads memory out of bounds or never ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from tridal.devices.plans import MAX_PROGRAMS
from tridal.devices.plugin_data import wrong_fields
from tridal.devices.types import (
    MAX_TILE,
    Backend,
    DeviceProperties,
    KernelConfig,
    LaunchPlan,
    Probe,
    Problem,
)
from tridal.errors import PlanError

_Faults = Iterator[tuple[str, Any, str]]
"""(field, its value, the allowed values in words)."""


def check_plan(backend: Backend, problem: Problem, device: DeviceProperties, plan: LaunchPlan, probe: Probe) -> None:
    """Checks the plan of a problem on a device, for all launches of its bucket. `probe` compiles a configuration.

    Raises:
        PlanError: the plan is wrong. The message has the backend, the problem, the field, its value and allowed values.
    """
    _raise_first(_faults(backend, problem, device, plan, probe), f"{label(backend)} made a wrong plan", problem)


def check_config(backend: Backend, problem: Problem, config: KernelConfig, what: str) -> None:
    """Checks a configuration as `check_plan` checks that of a plan. The message of the PlanError starts with `what`."""
    _raise_first(_config_faults(backend, problem, config), what, problem)


def label(backend: Backend) -> str:
    """Names a backend and its distribution, if it is known, for error messages."""
    return getattr(backend, "label", None) or f"backend {backend.name!r}"


def _raise_first(faults: _Faults, what: str, problem: Problem) -> None:
    for field, value, allowed in faults:
        traits = ", ".join(f"{f.name}={getattr(problem, f.name)!r}" for f in fields(Problem))
        raise PlanError(f"{what}: {field} = {value!r}, expected {allowed}; for Problem({traits})")


def _faults(backend: Backend, problem: Problem, device: DeviceProperties, plan: LaunchPlan, probe: Probe) -> _Faults:
    """Yields the faults. A check assumes that the earlier ones passed, so the caller must stop at the first one."""
    config = plan.config
    yield from _config_faults(backend, problem, config)
    yield from wrong_fields(plan)
    yield from _wrong_programs(problem, plan)
    if config.programs_per_row > 1 and problem.statistics:
        yield from _not_resident(device, plan, plan.programs_for(problem.tiles(config.rows)), probe)


def _config_faults(backend: Backend, problem: Problem, config: KernelConfig) -> _Faults:
    yield from wrong_fields(config)
    yield from _unsupported(backend, problem, config)
    yield from _uncovered(problem, config)


def _unsupported(backend: Backend, problem: Problem, config: KernelConfig) -> _Faults:
    """Checks what the backend declares, and which schedules, features and dtypes go together."""
    if problem.whole_rows and config.schedule != "whole_row":
        yield "schedule", config.schedule, "'whole_row', because a program has to hold whole rows"
    for feature in ("peel", "reload"):
        if problem.whole_rows and getattr(config, feature):
            yield feature, True, "False, because a program has to hold whole rows, with all of their elements"
    schedule, declared = config.schedule, f"one of the backend's `schedules`: {', '.join(sorted(backend.schedules))}"
    if schedule not in backend.schedules:
        yield "schedule", schedule, declared
    for feature in ("peel", "reload"):
        if getattr(config, feature) and feature not in backend.features:
            yield feature, True, f"False, because the backend's `features` lack {feature!r}"
    if config.reload and schedule == "column_loop" and config.programs_per_row == 1:
        yield "reload", True, f"False, because only a {schedule!r} with several programs per row supports it"
    if config.rest_cols:
        yield from _wrong_rest(backend, problem, config)
    if config.lanes > 1 and "lanes" not in backend.features:
        yield "lanes", config.lanes, "1, because the backend's `features` lack 'lanes'"
    inner = problem.layout == "inner"
    if config.lanes > 1 and (schedule != "column_loop" or (config.rows > 1 and not inner)):
        one = 'one row at a time, unless the layout is "inner"'
        yield "lanes", config.lanes, f'1, because only "column_loop" splits a row into lanes, and {one}'
    if config.lanes > 1 and inner and problem.row_reads:
        yield "lanes", config.lanes, "1, because lanes of inner dims have no numbers per row"
    vector = 1 if inner else problem.vector
    if config.lanes > 1 and config.cols % (config.lanes * vector):
        yield "lanes", config.lanes, f"a divisor of cols / {vector}, because a lane gets whole vectors"
    if config.peel and schedule == "column_loop" and not problem.statistics_only:
        yield "peel", True, f"False, because {schedule!r} peels rows only for statistics of elements without a mask"
    if config.peel and problem.layout != "row":
        yield "peel", True, f'False, because only the layout "row" has aligned vectors, not {problem.layout!r}'
    if config.peel and problem.column_writes:
        yield "peel", True, "False, because peeled rows begin at different columns, and the op sums over rows"
    per_row = config.programs_per_row
    if per_row > 1 and schedule == "whole_row":
        yield "programs_per_row", per_row, f"1, because the schedule is {schedule!r}"
    if per_row > 1 and "cooperative" not in backend.schedules:
        yield "programs_per_row", per_row, "1, because the backend's `schedules` lack 'cooperative'"
    if (schedule == "cooperative" or per_row > 1) and problem.statistics:
        field = "schedule" if schedule == "cooperative" else "programs_per_row"
        value, other = getattr(config, field), "another one" if field == "schedule" else "1"
        if problem.per_block:
            why = "each block has programs of its own, so they may not be resident at the same time"
            yield field, value, f"{other}: {why}"
        if problem.statistics > 2:
            found = f"the op has {problem.statistics}"
            yield field, value, f"{other}: programs exchange at most two statistics, and {found}"
        if problem.accumulator != 4:
            yield field, value, f"{other}: programs exchange float32 statistics, and a dtype is float64"
        if config.rows > 1 and (config.peel or not config.persistent):
            why = "with peel" if config.peel else "if programs are not persistent"
            yield "rows", config.rows, f"1, because cooperative programs exchange one row at a time {why}"
    if config.exp2_bias is not None and problem.accumulator != 4:
        yield "exp2_bias", config.exp2_bias, "None, because exp2 has float32 precision and a dtype is float64"


def _wrong_rest(backend: Backend, problem: Problem, config: KernelConfig) -> _Faults:
    """Checks where a row may have a second tile. The first tile has no mask, so it must be full."""
    reasons = {
        "the backend's `features` lack 'rest_cols'": "rest_cols" not in backend.features,
        'only "whole_row" has a rest, without `peel`, in tiles of one row': (
            config.schedule != "whole_row" or config.peel or config.rows > 1
        ),
        "a program has to hold whole rows in one tile": problem.whole_rows,
        f"a row of {problem.cols} columns fits in the first tile": problem.cols <= config.cols,
    }
    for reason in (reason for reason, wrong in reasons.items() if wrong):
        yield "rest_cols", config.rest_cols, f"0, because {reason}"


def _uncovered(problem: Problem, config: KernelConfig) -> _Faults:
    """Checks that tiles cover all columns, that Triton supports their size, and that no program has nothing to do."""
    per_row, vector = config.programs_per_row, problem.vector
    covered = problem.cols // vector * vector if config.peel else problem.cols
    tile = max(config.cols, 2 * vector * config.peel) * config.rows
    if config.schedule == "whole_row" and config.row_cols < covered:
        enough = problem.layout == "row" and config.cols >= problem.cols // vector * vector
        hint = ", or the same with peel = True" if enough else ""
        yield "cols", config.cols, f"at least {covered}, because a tile holds whole rows{hint}"
    if config.schedule == "cooperative" and config.cols * per_row < covered:
        least = math.ceil(covered / config.cols)
        yield "programs_per_row", per_row, f"at least {least}, because each program computes {config.cols} columns"
    if per_row > math.ceil(problem.cols / config.cols):
        most = math.ceil(problem.cols / config.cols)
        yield "programs_per_row", per_row, f"at most {most}, so that each program has columns to compute"
    if per_row * config.cols > 2**31:
        yield "programs_per_row", per_row, "fewer, because they number the columns of a row with 32 bits"
    exchanged = config.rows * (1 << (per_row - 1).bit_length()) if per_row > 1 else 0
    if max(tile, exchanged) > MAX_TILE:
        what = "rows x cols" if tile > MAX_TILE else "rows x programs_per_row"
        yield what, max(tile, exchanged), f"at most {MAX_TILE}, Triton's limit of a tensor in a kernel"


def _wrong_programs(problem: Problem, plan: LaunchPlan) -> _Faults:
    """Checks that programs form complete groups, and that a launch can have as many as there are."""
    config, programs, per_row = plan.config, plan.programs, plan.config.programs_per_row
    if config.persistent:
        if programs is None:
            yield "programs", None, "the largest number of programs of a launch, because they are persistent"
        elif programs % per_row:
            yield "programs", programs, f"a multiple of {per_row}, the programs of a row, which wait for each other"
        return
    if programs is not None:
        yield "programs", programs, f"None, because they are not persistent: each tile has its own {per_row}"
    tiles = problem.tiles(config.rows)
    if tiles * per_row > MAX_PROGRAMS:
        most = f"True, because {tiles} tiles x {per_row} are more than {MAX_PROGRAMS}, Triton's limit of programs"
        yield "persistent", False, most


def _not_resident(device: DeviceProperties, plan: LaunchPlan, programs: int, probe: Probe) -> _Faults:
    """Checks that `programs` that wait for each other fit on the device together. Otherwise they never end."""
    limits: dict[str, int | None] = {"occupancy of the plan": plan.occupancy, "max_programs": device.max_programs}
    threads = plan.config.num_warps * (device.warp_size or 0)
    if device.max_threads and threads:
        limits["max_threads"] = device.max_threads // threads
    if device.registers or device.shared_memory:
        used = probe(plan.config)
        if device.registers and threads and used.registers:
            limits["registers"] = device.registers // (used.registers * threads)
        if device.shared_memory and used.shared_memory:
            limits["shared_memory"] = device.shared_memory // used.shared_memory
    properties = ("warp_size", "registers", "shared_memory", "max_threads", "max_programs")
    unknown = [name for name in properties if getattr(device, name) is None]
    if plan.occupancy is None and unknown:
        yield "occupancy", None, f"an integer, because {device.name} does not report {', '.join(unknown)}"
    per_core, name = min((value, name) for name, value in limits.items() if value is not None)
    if programs > per_core * device.cores:
        most = f"at most {per_core * device.cores}, which are resident at the same time on {device.cores} cores"
        yield "programs", programs, f"{most} with {per_core} each (limited by {name})"
