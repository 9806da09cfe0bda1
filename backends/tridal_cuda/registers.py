"""Estimates the registers and the shared memory of a configuration, from the problem alone."""

from __future__ import annotations

from tridal.devices.types import ITEMSIZE, KernelConfig
from tridal_accelerator.candidates import Estimate
from tridal_cuda import tuning
from tridal_cuda.gpu_problem import GpuProblem
from tridal_cuda.resources import max_registers_for

_FEW = 16
"""Registers that every kernel needs."""


def estimate(problem: GpuProblem, config: KernelConfig) -> Estimate:
    """Estimates the registers and spills of a configuration, which only the compiler knows."""
    terms = _terms_of_reload(problem, config) if config.reload else _terms(problem, config)
    needed = max(_FEW, sum(count * weight for count, weight, _ in terms))
    used = max(needed, sum(count * weight for count, _, weight in terms))
    most = max_registers_for(1, config, problem.device) or tuning.MAX_REGISTERS
    loaded = (*problem.reads, *problem.added)  # a pipeline has all its stages but one in shared memory
    if config.schedule == "column_loop":
        loaded += problem.column_reads + problem.column_writes
    tile_bytes = config.rows * int(config.row_cols) * sum(map(ITEMSIZE.__getitem__, loaded))
    return Estimate(needed, used, min(tuning.MAX_REGISTERS, most), (config.num_stages - 1) * tile_bytes)


# A term is a count, and the registers per thread that it adds: those that are needed to spill nothing, and those that
# the compiler uses without a limit. They were fitted to 1,683 configurations of all ops, which Triton 3.7 compiled for
# sm_80, sm_90, sm_100 and sm_120. The needed ones are rather too few, because the compiler's report then corrects them.


def _terms(problem: GpuProblem, config: KernelConfig) -> list[tuple[float, float, float]]:
    """Terms of a kernel that keeps elements in registers between passes."""
    elements, inner = _elements_per_thread(problem, config), problem.layout == "inner"
    unaligned = not (problem.aligned or config.peel or problem.layout == "strided")
    loop, stages = config.schedule == "column_loop", config.num_stages
    return [
        (1, -6.35, 16.32),
        (_exchanges(problem, config), 8.31, 27.06),
        (problem.statistics > 1, 3.27, 4.93),
        (inner, 14.36, 9.47),
        (config.peel, 11.48, -4.63),
        (elements, 1.23, 0.95),
        (elements * inner, -0.05, 0.40),
        (elements * config.peel, -0.23, 0.44),
        (elements * (config.rows > 1 and not inner), -0.31, -0.01),
        (elements * unaligned, 0.73, 1.28),
        (elements * (problem.layout == "strided"), 1.00, 1.28),
        (elements * (len(problem.reads) - 1), 0.39, 0.19),
        (elements * (problem.live_tiles - 1), 0.23, 0.29),
        (elements * len(problem.column_reads), 0.35, 0.48),
        (elements * len(problem.column_writes), 1.02, 1.42),
        (elements * problem.scale_mask, 0.03, 0.33),
        (elements * (not problem.writes), -0.84, -0.68),
        (elements * (not problem.statistics), 0.13, 0.10),
        (elements * loop, 0.30, 0.49),
        (elements * (stages > 1 and not loop), -0.15, 0.59),
    ]


def _terms_of_reload(problem: GpuProblem, config: KernelConfig) -> list[tuple[float, float, float]]:
    """Terms of a kernel with `reload`, whose registers hold loaded elements in their own dtype."""
    elements, inner = _elements_per_thread(problem, config), problem.layout == "inner"
    return [
        (1, -1.66, -0.02),
        (_exchanges(problem, config), 2.53, 12.76),
        (problem.statistics > 1, 6.07, 0.01),
        (inner, 6.11, -1.50),
        (config.peel, -3.28, -3.42),
        (elements * problem.bytes_read / 4, 1.33, 1.79),
        (elements * inner, 0.21, 0.40),
        (elements * config.peel, 0.06, 0.04),
        (elements * (len(problem.reads) - 1), -0.07, 0.18),
        (elements * len(problem.column_reads), 0.09, -0.01),
        (elements * len(problem.column_writes), 1.73, 1.31),
        (elements * (not problem.writes), -0.11, 0.09),
    ]


def _elements_per_thread(problem: GpuProblem, config: KernelConfig) -> float:
    """Counts the elements of a tile that a thread has, in 32-bit registers."""
    threads = (problem.device.warp_size or 32) * config.num_warps
    return max(1, int(config.rows * config.row_cols) / threads) * problem.accumulator / 4


def _exchanges(problem: GpuProblem, config: KernelConfig) -> bool:
    return config.programs_per_row > 1 and problem.statistics > 0
