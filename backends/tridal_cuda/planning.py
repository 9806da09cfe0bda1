"""Makes the launch plan for a GPU: the schedule, its configuration and the number of programs."""

from __future__ import annotations

from dataclasses import asdict, replace

from tridal.devices.types import (
    MAX_PROGRAMS,
    DeviceProperties,
    KernelConfig,
    LaunchPlan,
    Probe,
    Problem,
    next_power_of_2,
)
from tridal.errors import PlanError
from tridal_accelerator.candidates import Candidates
from tridal_accelerator.gpu import cdiv, programs_of_blocks
from tridal_cuda import tuning
from tridal_cuda.column_reads import fit_column_reads
from tridal_cuda.column_sums import fit_column_sums
from tridal_cuda.cooperative import fit_cooperative
from tridal_cuda.gpu_problem import Fit, GpuProblem, warps_for
from tridal_cuda.registers import estimate
from tridal_cuda.single_pass import fit_single_pass
from tridal_cuda.two_tiles import fit_two_tiles
from tridal_cuda.whole_row import fit_whole_row

_FITS = (fit_two_tiles, fit_column_sums, fit_single_pass, fit_column_reads, fit_whole_row, fit_cooperative)


def plan(problem: Problem, device: DeviceProperties, probe: Probe, config: KernelConfig | None = None) -> LaunchPlan:
    """Plans with `config`, or else with the first configuration that is suitable.

    Kernels that sum over rows, that read numbers per column, or whose programs exchange nothing have their own. For all
    others, the order of the schedules is `whole_row`, `cooperative`, `column_loop`.

    A configuration that spills more than `Fit.max_spill` bytes per thread is used only if no other one spills less.

    Raises:
        PlanError: no program of the configuration fits on a multiprocessor, or too few of `config`.
    """
    candidates = Candidates(probe, lambda config: estimate(gpu_problem, config))
    gpu_problem = GpuProblem(**asdict(problem), device=device, probe=candidates)
    if config is None:
        fits = (fit_whole_row,) if problem.whole_rows else (*_FITS, _fit_column_loop)
        fitted = candidates.choose(
            lambda: (fit(gpu_problem) for fit in fits), gpu_problem.fit, gpu_problem.with_resident_row
        )
    else:
        fitted = replace(gpu_problem, probe=probe).fit(config)
        if not fitted.runs:
            waiting = "of a row" if fitted.config.persistent else "of a launch, which do not loop,"
            raise PlanError(f"not all programs {waiting} are resident: {device.cores} SMs x {fitted.formula}")
    programs, explanation = _count_programs(fitted)
    return fitted.launch_plan(programs, gpu_problem.tiles(fitted.config.rows), explanation)


def _count_programs(fitted: Fit) -> tuple[int | None, str]:
    """Gives the `programs` of the plan, and the explanation for its `reason`."""
    config, problem, per_row = fitted.config, fitted.problem, fitted.config.programs_per_row
    tiles = problem.tiles(config.rows)
    groups = max(1, min(tiles, fitted.groups))  # none is resident if programs that do not wait fill more than the GPU
    if problem.column_writes and problem.per_block:
        most = tiles // problem.blocks // tuning.SUMS_MIN_TILES
        programs = programs_of_blocks(problem.blocks, max(1, fitted.groups), most)
        of_block = programs // problem.blocks
        return programs, f"{of_block} programs loop over the tiles of each of {problem.blocks} blocks, and sum them"
    if problem.column_writes:
        enough, most = cdiv(problem.device.cores, per_row), tiles // tuning.SUMS_MIN_TILES
        groups = min(groups, enough) if most <= enough else min(most, groups)
        programs = groups * per_row
        return programs, f"{programs} programs loop over the tiles, and {groups} of them sum each column"
    if not problem.statistics and per_row > 1:
        apart = f"{per_row} programs compute each row and do not wait for each other"
        if tiles * per_row > MAX_PROGRAMS:
            return groups * per_row, f"{apart}, and loop over the rows, because a launch has too few programs for all"
        return tiles * per_row if config.persistent else None, apart
    if config.schedule == "cooperative" or per_row > 1:
        programs = groups * per_row
        together = f"{per_row} programs compute each row and all are resident at once"
        return programs if config.persistent else None, f"{together}, so at most {programs} are launched"
    if config.persistent:
        return groups, f"{groups} programs loop over the tiles"
    return fitted.one_program_per_tile(tiles)


def _fit_column_loop(problem: GpuProblem) -> Fit:
    """Fits `column_loop`: tiles with a quarter of `max_elements`, and as many stages as fit."""
    inner = problem.layout == "inner"
    rows = next_power_of_2(problem.inner, tuning.INNER_ROWS // 2) if inner else 1
    elements = problem.max_elements // 4
    warps = warps_for(elements, tuning.FEW_ELEMENTS_PER_THREAD // (2 if inner else 1))
    config = KernelConfig("column_loop", rows, elements // rows, warps)
    stages = range(problem.max_stages, 0, -1)
    fits = (problem.fit(replace(config, num_stages=number)).with_few_spills() for number in stages)
    return next(fitted for fitted in fits if fitted.occupancy)
