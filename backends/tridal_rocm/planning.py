"""Makes the launch plan for an AMD GPU: the schedule, its configuration and the number of programs.

No plan is cooperative. The exchange between programs has not run on an AMD GPU, and on a GPU of several dies, each die
has its own L2 cache. Rows that do not fit in registers are read twice, by `column_loop`, the second time from a cache.

The constants are calculated, not measured.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import asdict, replace

from tridal.devices.types import (
    DeviceProperties,
    KernelConfig,
    LaunchPlan,
    Probe,
    Problem,
    next_power_of_2,
)
from tridal.errors import PlanError
from tridal_accelerator.candidates import Candidates, Estimate
from tridal_accelerator.gpu import Compiled, DeviceProblem, cdiv, count_programs
from tridal_rocm.resources import MAX_THREADS, max_registers, occupancy

_KIB = 1 << 10
_CACHE_LINE = 128  # bytes
_MAX_LAUNCHED_THREADS = (1 << 32) - 1  # of all programs of a launch, a limit of HIP
# An MI300X reads 5.3 TB/s, so each of its 304 compute units needs 14 KiB in flight for a latency of 0.8 us. Programs
# load for a part of their time only. An MI355X needs 25 KiB for 8 TB/s and 256 compute units.
_BYTES_IN_FLIGHT = 64 * _KIB
_MIN_PERSISTENT = 2  # programs per core that loop, so that one loads while another one computes
_NARROW_ELEMENTS = 16  # per thread, for tiles of several narrow rows and one wave
_ELEMENTS = 32  # per thread, for one float32 tensor: it needs 54 registers, so 8 waves fit on a SIMD of CDNA
_LOOP_ELEMENTS = 16  # per thread in `column_loop`, which also holds the prefetched elements of the next tile
_MAX_ELEMENTS = 64  # per thread; with more, kernels spill
_MAX_HALVINGS = 3  # of a tile, to spill less
_FEW_REGISTERS = 16  # of a thread, besides its elements
# The mean error of v_exp_f32 has not been measured. A bias above zero lets kernels correct the rounding of exp2's
# argument, which is larger.
_EXP2_BIAS = 1e-9


def plan(problem: Problem, device: DeviceProperties, probe: Probe, config: KernelConfig | None = None) -> LaunchPlan:
    """Plans with `config`, or else with the first configuration that fits and does not spill.

    Those of `whole_row` come before those of `column_loop`. If all configurations spill, it is the one with the fewest
    spilled bytes.

    Raises:
        PlanError: no program of any configuration fits on a core.
    """
    candidates = Candidates(probe, lambda config: _estimate(gpu_problem, config))
    gpu_problem = DeviceProblem(**asdict(problem), device=device, probe=candidates)
    if config is None:
        fit = functools.partial(_fit, gpu_problem)
        fitted = candidates.choose(lambda: map(fit, _configs(gpu_problem)), fit)
    else:
        fitted = _fit(replace(gpu_problem, probe=probe), config)
    if not fitted.occupancy:
        raise PlanError(f"{fitted.config} does not fit on {device.name}: {fitted.formula}")
    tiles = problem.tiles(fitted.config.rows)
    programs, explanation = _count_programs(fitted, tiles)
    return fitted.launch_plan(programs, tiles, explanation)


def _estimate(problem: DeviceProblem, config: KernelConfig) -> Estimate:
    """Estimates by the elements of a thread. All registers of a SIMD are shared by the waves of a program."""
    threads = (problem.device.warp_size or 64) * config.num_warps
    elements = max(1, int(config.rows * config.cols) // threads)
    registers = _FEW_REGISTERS + elements * problem.registers_per_element
    return Estimate(registers, registers, max_registers(config, problem.device), 0)


def _fit(problem: DeviceProblem, config: KernelConfig) -> Compiled:
    """Sets `exp2_bias`, compiles the configuration, and computes its occupancy, which is 0 if it does not fit."""
    config = replace(config, exp2_bias=problem.exp2_bias(_EXP2_BIAS))
    resources = problem.probe(config)
    return Compiled(problem, config, resources, *occupancy(config, resources, problem.device))


def _count_programs(fitted: Compiled, tiles: int) -> tuple[int | None, str]:
    """Gives the `programs` of the plan, and the explanation for its `reason`.

    Programs that loop are as many as keep `_BYTES_IN_FLIGHT` in flight. More would write more partial sums. With
    `column_loop`, they are fewer if their rows would fill more than half of the cache, from which they are read again.
    The other half is for the results.
    """
    config, problem, device = fitted.config, fitted.problem, fitted.problem.device
    if not config.persistent:
        return fitted.one_program_per_tile(tiles)
    per_core = min(fitted.occupancy, max(_MIN_PERSISTENT, cdiv(_BYTES_IN_FLIGHT, problem.bytes_per_tile(config))))
    rows, cache = config.rows * problem.cols * problem.bytes_read, device.l2_cache or 0
    writes = bool(problem.writes or problem.column_writes)
    read_twice = config.schedule == "column_loop" and problem.statistics > 0 and writes
    if read_twice:
        per_core = min(per_core, max(_MIN_PERSISTENT, cache // 2 // (device.cores * rows)))
    programs = count_programs(problem, tiles, device.cores * per_core)
    explanation = f"{programs} programs loop over the tiles, at most {per_core} per {device.core_name}"
    if read_twice:
        fits = "fits in the cache of" if programs * rows <= cache else "exceeds the cache of"
        explanation += f", and read twice: {programs} x {rows} = {programs * rows} bytes {fits} {cache}"
    return programs, explanation


def _configs(problem: DeviceProblem) -> Iterator[KernelConfig]:
    """Yields configurations in the order in which they are tried."""
    yield from _whole_rows(problem)
    if not problem.whole_rows:
        yield from _column_loops(problem)


def _whole_rows(problem: DeviceProblem) -> Iterator[KernelConfig]:
    """Yields configurations of `whole_row`, each with twice the warps, too; fewer and fewer inner-dim rows per tile."""
    warp_size, cols, peel = problem.device.warp_size or 64, problem.tile_cols, problem.peel
    weight = problem.registers_per_element
    rows = max(1, _NARROW_ELEMENTS * warp_size // cols)
    rows = next_power_of_2(problem.inner, rows)
    min_rows = rows
    if problem.layout == "inner":
        min_rows, most = _inner_rows(problem)
        rows = max(rows, most)
    while rows >= min_rows:
        if rows * cols <= MAX_THREADS * _MAX_ELEMENTS // weight:
            warps = max(1, min(MAX_THREADS, rows * cols * weight // _ELEMENTS) // warp_size)
            too_many = 2 * problem.tiles(rows) * warps * warp_size > _MAX_LAUNCHED_THREADS
            loop = bool(problem.column_writes) or too_many
            config = KernelConfig("whole_row", rows, cols, warps, peel=peel, persistent=loop)
            yield config
            if warps * warp_size < min(MAX_THREADS, rows * cols):
                yield replace(config, num_warps=2 * warps)
        rows //= 2


def _column_loops(problem: DeviceProblem) -> Iterator[KernelConfig]:
    """Yields configurations of `column_loop` with smaller and smaller tiles. The next tile's loads are prefetched."""
    threads, rows = MAX_THREADS // 2, _inner_rows(problem)[1] if problem.layout == "inner" else 1
    elements = threads * _LOOP_ELEMENTS // problem.registers_per_element
    for _ in range(1 + _MAX_HALVINGS):
        cols = max(1, min(elements // rows, next_power_of_2(problem.cols)))
        yield KernelConfig("column_loop", rows, cols, threads // (problem.device.warp_size or 64), num_stages=2)
        elements //= 2


def _inner_rows(problem: DeviceProblem) -> tuple[int, int]:
    """The fewest inner-dim rows of a tile fill half of a cache line, and the most fill a full line.

    If there are fewer tiles of full lines than cores, the most are half of a line, too.
    """
    line = _CACHE_LINE // problem.itemsize
    few = problem.tiles(line) < problem.device.cores
    return next_power_of_2(problem.inner, line // 2), next_power_of_2(problem.inner, line // 2 if few else line)
