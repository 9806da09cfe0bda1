"""Invariants of the plans of GPUs: what has to hold for every plan with every compiler. And random problems."""

from __future__ import annotations

from hypothesis import strategies as st

from tridal.devices.types import MAX_PROGRAMS, DeviceProperties, KernelConfig, LaunchPlan, Probe, Problem, Resources
from tridal_cuda.resources import occupancy
from tridal_cuda.tuning import MAX_SPILL, MAX_SPILL_RELOAD, SUMS_UNALIGNED_SPILL

WAVES = {64: 8, 32: 16}
"""The most waves of a SIMD of AMD GPUs, by the number of threads in a wave."""
REGISTERS = {64: (512, 8), 32: (1536, 24)}
"""The vector registers of each lane of a SIMD, and the unit of their allocation."""
DTYPES = ("float16", "bfloat16", "float32", "float64")


@st.composite
def problems(choose: st.DrawFn) -> Problem:
    """Problems of all kinds of kernels, layouts and dtypes, with few and many columns and rows."""

    def tensors(largest: int, least: int = 0) -> tuple[str, ...]:
        return (choose(st.sampled_from(DTYPES)),) * choose(st.integers(least, largest))

    widest = choose(st.sampled_from([64, 2000, 5000, 300_000, 20_000_000, 3_000_000_000]))
    writes = tensors(2)
    return Problem(
        cols=choose(st.integers(1, widest)),
        inner=choose(st.sampled_from([1, 2, 3, 16, 31, 132, 4096, 100_000, 3_000_000_000])),
        outer=choose(st.sampled_from([1, 2, 512])),
        reads=tensors(6, 1),
        writes=writes,
        row_reads=tensors(2),
        column_reads=tensors(2),
        row_writes=tensors(2, 0 if writes else 1),
        column_writes=tensors(2),
        passes=choose(st.integers(1, 3)),
        live_tiles=choose(st.integers(1, 4)),
        statistics=choose(st.integers(0, 2)),
        layout=choose(st.sampled_from(["row", "inner", "strided"])),
        aligned=choose(st.booleans()),
        scale_mask=choose(st.booleans()),
        per_block=choose(st.booleans()),
    )


def compiler(problem: Problem) -> Probe:
    """Models a compiler for NVIDIA GPUs. A thread needs registers for its elements: all, or a part with `reload`.

    Under a limit, the kernel uses all registers that it may use, and spills 4 bytes for each one that it lacks.
    """

    def probe(config: KernelConfig) -> Resources:
        elements = config.rows * config.cols // (32 * config.num_warps) * len(problem.reads)
        needed = 16 + elements * problem.itemsize // 8 if config.reload else 24 + elements * problem.accumulator // 4
        allowed = min(255, 65_536 // (32 * config.num_warps), config.max_registers or 255)
        return Resources(allowed if config.max_registers else min(needed, allowed), max(0, 4 * (needed - allowed)), 0)

    return probe


def check_plan(problem: Problem, device: DeviceProperties, plan: LaunchPlan) -> None:
    """Asserts that tiles cover the rows, that programs compute all tiles and fit, and that the reason says why."""
    config, tiles, used = plan.config, problem.tiles(plan.config.rows), plan.resources
    for size in (config.rows, config.cols, config.num_warps):
        assert size & (size - 1) == 0 < size
    assert config.num_warps * (device.warp_size or 0) <= 1024
    assert config.rows * config.cols <= 1 << 20, "Triton allows no larger tensor"
    assert used is not None
    assert plan.occupancy, "one program fits on a core"

    cols_in_tiles = problem.cols // problem.vector * problem.vector if config.peel else problem.cols
    assert not config.peel or (problem.layout == "row" and not problem.aligned)
    resident, launched = device.cores * plan.occupancy, plan.programs_for(tiles)
    if config.schedule == "cooperative":
        assert config.programs_per_row > 1
        assert config.cols * config.programs_per_row >= cols_in_tiles
    else:
        assert config.programs_per_row == 1 or config.schedule == "column_loop"
        assert config.schedule == "column_loop" or config.row_cols >= cols_in_tiles
    if config.programs_per_row > 1:
        assert plan.programs is None or plan.programs % config.programs_per_row == 0
        if problem.statistics:
            assert launched <= resident, "all programs are resident at once"
            assert problem.accumulator == 4, "float64 statistics do not fit in one word"
    assert config.persistent == (plan.programs is not None)
    assert 1 <= launched <= MAX_PROGRAMS
    assert not problem.column_writes or config.persistent, "each program writes a row of partial sums"
    tiles = problem.tiles(config.rows) if device.target and device.target[0] == "hip" else tiles
    assert f"occupancy {plan.occupancy} = min(" in plan.reason
    assert f"{device.cores} {device.core_name}s x {plan.occupancy} = {resident} resident programs" in plan.reason
    columns = f"{config.cols} + {config.rest_cols}" if config.rest_cols else config.cols
    assert f"{problem.rows} rows in {tiles} tiles of {config.rows} x {columns}: " in plan.reason
    assert (f"{used.spills} bytes per thread are spilled" in plan.reason) == (used.spills > 0)


def most_spilled(problem: Problem, config: KernelConfig) -> int:
    """Bytes per thread that a CUDA plan may spill if another one spills less."""
    unaligned_sums = problem.column_writes and not problem.aligned and problem.layout != "inner"
    has_own_limit = unaligned_sums and problem.accumulator == 4 and config.num_stages == 1 and not config.reload
    return SUMS_UNALIGNED_SPILL if has_own_limit and config.schedule != "column_loop" else MAX_SPILL


def check_cuda_plan(problem: Problem, device: DeviceProperties, plan: LaunchPlan) -> None:
    """Asserts what has to hold for plans of NVIDIA GPUs."""
    check_plan(problem, device, plan)
    config, used = plan.config, plan.resources
    assert used is not None
    assert config.rows < 2 * problem.inner, "at least half of the rows of a tile are rows of a block"
    assert plan.occupancy == occupancy(config, used, device)[0]
    if config.schedule == "whole_row" and config.reload and problem.layout == "row" and config.cols > 8192:
        assert used.spills <= (MAX_SPILL if problem.column_reads or problem.column_writes else MAX_SPILL_RELOAD)
    registers = -(-used.registers // 8) * 8
    programs = 65_536 // (registers * 32 * config.num_warps)
    assert f"registers 65536//({registers}*32*{config.num_warps})={programs}" in plan.reason


def check_rocm_plan(problem: Problem, device: DeviceProperties, plan: LaunchPlan) -> None:
    """Asserts what has to hold for plans of AMD GPUs."""
    check_plan(problem, device, plan)
    config, used, warp_size = plan.config, plan.resources, device.warp_size or 0
    assert used is not None
    assert plan.occupancy is not None
    assert config.schedule in ("whole_row", "column_loop"), "the exchange between programs has not run on an AMD GPU"
    assert not config.reload
    assert config.max_registers is None, "Triton's AMD backend has no limit on registers"
    launched = plan.programs_for(problem.tiles(config.rows))
    assert launched * config.num_warps * warp_size < 1 << 32, "HIP launches no more threads"
    per_simd = waves(used.registers, warp_size)
    assert plan.occupancy * config.num_warps <= 4 * per_simd
    assert plan.occupancy * used.shared_memory <= (device.shared_memory or 0)
    assert not problem.column_writes or problem.per_block or launched <= device.cores * plan.occupancy
    per_lane, unit = REGISTERS[warp_size]
    formula = f"4*min({WAVES[warp_size]}, {per_lane}//{allocated(used.registers, unit)})//{config.num_warps}"
    assert f"min(waves {formula}={4 * per_simd // config.num_warps}" in plan.reason


def waves(registers: int, warp_size: int) -> int:
    """The waves that the registers of a SIMD of an AMD GPU can hold."""
    per_lane, unit = REGISTERS[warp_size]
    return min(WAVES[warp_size], per_lane // allocated(registers, unit))


def allocated(registers: int, unit: int) -> int:
    """The registers of a lane that are allocated."""
    return -(-max(1, registers) // unit) * unit
