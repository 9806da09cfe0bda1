"""Configures `column_loop` for long inner-dim rows on a GPU: several programs loop over the columns of each row."""

from __future__ import annotations

from dataclasses import replace

from tridal.devices.types import ALIGNMENT, KernelConfig, next_power_of_2
from tridal_accelerator.gpu import cdiv
from tridal_cuda import tuning
from tridal_cuda.gpu_problem import Fit, GpuProblem, warps_for
from tridal_cuda.resources import max_registers_for


def fit_inner_loop(problem: GpuProblem) -> Fit | None:
    """Fits long rows in tiles whose rows fill a cache line. None stands for other problems.

    With one tile per program, programs would exchange too many values, or a tile would have half cache lines.
    """
    rows = tuning.CACHE_LINE // problem.itemsize
    short = rows * problem.cols < tuning.INNER_LOOP_MIN_ELEMENTS
    if problem.layout != "inner" or problem.inner % rows or short or not problem.caches_inner_rows:
        return None
    measured = problem.statistics and problem.writes and not problem.scale_mask
    if not measured or problem.row_reads or problem.column_reads or problem.column_writes:
        return None
    cols = tuning.INNER_LOOP_TILE_ELEMENTS // rows
    warps = warps_for(rows * cols * problem.itemsize, tuning.INNER_LOOP_BYTES_PER_THREAD)
    per_core = tuning.INNER_LOOP_WARPS_PER_CORE // warps
    programs = _programs_per_row(rows, cols, per_core, problem)
    # A cache line has 8 vectors, so 8 threads share a column, and a program has an eighth of its threads as lanes.
    lanes = warps * (problem.device.warp_size or 32) // (tuning.CACHE_LINE // ALIGNMENT)
    config = KernelConfig("column_loop", rows, cols, warps, programs_per_row=programs, reload=True, lanes=lanes)
    limit = max_registers_for(per_core, config, problem.device)
    fitted = problem.fit(replace(config, max_registers=limit or None))
    return fitted if fitted.usable else None


def _programs_per_row(rows: int, cols: int, per_core: int, problem: GpuProblem) -> int:
    """Returns a power of two. The rows that are computed at the same time fit in the L1 caches, unless that takes more
    than `INNER_LOOP_MAX_PROGRAMS`.

    With few tiles, it is larger, so that all multiprocessors have programs. Each program has at least two blocks.
    """
    resident = per_core * problem.device.cores
    tile_bytes = rows * problem.cols * problem.bytes_read
    in_cache = next_power_of_2(cdiv(per_core * tile_bytes, tuning.INNER_LOOP_BYTES_PER_CORE))
    wanted = max(in_cache, resident // problem.tiles(rows))
    programs = min(wanted, tuning.INNER_LOOP_MAX_PROGRAMS, resident, cdiv(problem.cols, cols) // 2)
    return 1 << programs.bit_length() - 1
