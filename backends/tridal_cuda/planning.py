"""The launch plan of a GPU: chooses the schedule, its configuration and the number of programs.

A plan depends on the traits of a problem, and never on the name of an op. docs/performance-notes.md gives the reasons
and the measurements behind the decisions.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tridal.devices.types import DeviceProperties, KernelConfig, LaunchPlan, Probe, Problem
from tridal_cuda import column_loop, cooperative, whole_row
from tridal_cuda.cooperative import COOPERATIVE_BYTES_IN_FLIGHT
from tridal_cuda.fitting import (
    BYTES_IN_FLIGHT,
    MAX_SPILL_COOPERATIVE,
    MAX_SPILL_RELOAD,
    Fit,
    fit,
    fit_resident,
    fit_whole_row_reload,
    with_register_limit,
)
from tridal_cuda.sizes import (
    FEW_ELEMENTS_PER_THREAD,
    MANY_ELEMENTS_PER_THREAD,
    MIN_WAVES,
    bytes_per_tile,
    max_elements,
    max_stages,
    warps_for,
)

_MIN_BYTES_IN_FLIGHT = 56 << 10
"""Bytes of resident tiles below which `cooperative` is faster than `whole_row`. A single program needs 96 KiB."""


def plan(problem: Problem, device: DeviceProperties, probe: Probe) -> LaunchPlan:
    """Plans `whole_row` if rows fit in registers, else `cooperative`, and `column_loop` where neither is possible.

    Args:
        problem: the traits of the call.
        device: the GPU, which need not be present.
        probe: compiles a configuration and returns its resources.

    Raises:
        PlanError: no program of the chosen configuration fits on a multiprocessor.
    """
    fitted = _fit_whole_row(problem, device, probe) or _fit_cooperative(problem, device, probe)
    fitted = fitted or fit(column_loop.column_loop(problem, device), device, probe)
    programs, how = _programs(fitted, problem, device)
    config, resident = fitted.config, fitted.programs * device.cores
    spilled = f"; {fitted.resources.spills} bytes per thread are spilled" if fitted.resources.spills else ""
    reason = (
        f"occupancy {fitted.programs} = {fitted.formula}; {device.cores} {device.core_name}s x {fitted.programs} = "
        f"{resident} resident programs; {problem.rows} rows in {problem.tiles(config.rows)} tiles of "
        f"{config.rows} x {config.cols}: {how}{spilled}"
    )
    return LaunchPlan(config, programs, reason, fitted.programs, fitted.resources)


def _programs(fitted: Fit, problem: Problem, device: DeviceProperties) -> tuple[int, str]:
    """Returns the number of programs of a launch, and how they work in words."""
    config, resident = fitted.config, fitted.programs * device.cores
    tiles = problem.tiles(config.rows)
    if config.schedule == "cooperative":
        per_row = config.programs_per_row
        programs = min(tiles, resident // per_row) * per_row
        return programs, f"{per_row} programs compute each row and all are resident at once, so {programs} are launched"
    if config.persistent:
        programs = min(tiles, resident)
        return programs, f"{programs} programs loop over the tiles"
    return tiles, f"one program per tile, {tiles / resident:.1f} times as many as are resident"


def _fit_whole_row(problem: Problem, device: DeviceProperties, probe: Probe) -> Fit | None:
    """Fits `whole_row`; None if rows are too wide, or if `cooperative` keeps more bytes in flight."""
    config = whole_row.whole_row(problem, device)
    if config is None:
        return None
    wide = config.cols > whole_row.WIDE_ROW_COLS
    can_cooperate = problem.layout != "inner" and wide and problem.accumulator == 4
    if can_cooperate and (problem.rows < MIN_WAVES * device.cores or (config.peel and not config.reload)):
        return None  # too few programs at any occupancy, so nothing is compiled
    if config.reload:
        fitted = fit_whole_row_reload(config, problem, device, probe)
        busy = fitted.bytes_in_flight(problem) > BYTES_IN_FLIGHT and fitted.resources.spills <= MAX_SPILL_RELOAD
    else:
        fitted = with_register_limit(fit(config, device, probe), BYTES_IN_FLIGHT, problem, device, probe)
        min_bytes = _MIN_BYTES_IN_FLIGHT if fitted.programs > 1 else BYTES_IN_FLIGHT
        enough_waves = problem.rows >= MIN_WAVES * fitted.programs * device.cores
        busy = fitted.bytes_in_flight(problem) > min_bytes and enough_waves
    return fitted if busy or not can_cooperate else None


def _fit_cooperative(problem: Problem, device: DeviceProperties, probe: Probe) -> Fit | None:
    """Fits `cooperative`; None if the programs of a row cannot all be resident.

    The result is a `whole_row` configuration if the whole row fits in one of its column blocks.
    """
    if problem.accumulator == 8:
        return None  # float64 statistics do not fit in the 64-bit word that programs exchange
    one_shot = _fit_one_shot(problem, device, probe)
    if one_shot is not None:
        return one_shot
    config = cooperative.cooperative_reload(problem, device)
    if config is not None:
        fitted = fit(config, device, probe)
        fitted = with_register_limit(fitted, COOPERATIVE_BYTES_IN_FLIGHT, problem, device, probe, MAX_SPILL_RELOAD)
        if fitted.programs * device.cores >= config.programs_per_row:
            return fitted
    resident = _fit_resident_blocks(problem, device, probe)
    if resident is None:
        return None
    limited = with_register_limit(resident, COOPERATIVE_BYTES_IN_FLIGHT, problem, device, probe, MAX_SPILL_COOPERATIVE)
    return _pipelined(resident.config, limited, problem, device, probe) or limited


def _fit_resident_blocks(problem: Problem, device: DeviceProperties, probe: Probe) -> Fit | None:
    """Doubles the column blocks until all programs of a row are resident; None if a block becomes too large."""
    config = cooperative.cooperative(problem, device)
    if config is None:
        return None
    fitted = fit(config, device, probe)
    while fitted.programs * device.cores < fitted.config.programs_per_row:
        cols = 2 * fitted.config.cols
        if fitted.config.rows * cols > max_elements(problem, device):
            return None
        fitted = fit(cooperative.with_block_cols(fitted.config, cols, problem), device, probe)
    return fitted


def _pipelined(
    config: KernelConfig, limited: Fit, problem: Problem, device: DeviceProperties, probe: Probe
) -> Fit | None:
    """Fits `config` with a software pipeline, which loads the next tiles while programs wait for each other.

    Returns None if `limited`, the fit without a pipeline, has enough bytes in flight or loads as much at the same time.
    """
    missing = COOPERATIVE_BYTES_IN_FLIGHT / limited.bytes_in_flight(problem)
    if missing <= 1 or config.rows > 1 or config.peel:
        return None
    stages = min(max_stages(device) - 1, 1 + math.ceil(missing))
    pipelined = fit(replace(config, num_stages=stages), device, probe)
    pipelined = with_register_limit(pipelined, BYTES_IN_FLIGHT, problem, device, probe)
    enough = max(2 * limited.programs, stages * -(-config.programs_per_row // device.cores))
    return pipelined if pipelined.programs * stages >= enough else None


def _fit_one_shot(problem: Problem, device: DeviceProperties, probe: Probe) -> Fit | None:
    """Fits a one-shot cooperative plan, in which each program computes one block; None if not all can be resident.

    More warps per program are faster. So it first tries few elements per thread.
    """
    config = cooperative.cooperative_one_shot(problem, device)
    if config is None:
        return None
    without_reload = replace(config, reload=False, max_registers=None)
    programs_per_core = -(-config.programs_per_row * problem.rows // device.cores)
    if config.reload and programs_per_core * bytes_per_tile(config, problem) > (device.shared_memory or 0):
        config = without_reload
    fast = replace(config, num_warps=warps_for(config.cols, FEW_ELEMENTS_PER_THREAD))
    fitted = fit_resident(fast, programs_per_core, device, probe)
    if fitted is not None and not fitted.resources.spills:
        return fitted
    if problem.itemsize > 2:  # a 32-bit element needs as many bytes in a register as in the cache
        config = without_reload
    slow = replace(config, num_warps=warps_for(config.cols, MANY_ELEMENTS_PER_THREAD))
    candidates = (fit_resident(slow, programs_per_core, device, probe), fitted)
    return min((found for found in candidates if found), key=lambda found: found.resources.spills, default=None)
