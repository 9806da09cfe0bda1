"""Invariants of ROCm plans: what has to hold for every plan with every compiler."""

from __future__ import annotations

import plan_invariants
from tridal.devices.types import DeviceProperties, LaunchPlan, Problem

WAVES = {64: 8, 32: 16}
"""The most waves of a SIMD, by the number of threads in a wave."""
REGISTERS = {64: (512, 8), 32: (1536, 24)}
"""The vector registers of each lane of a SIMD, and the unit of their allocation."""


def waves(registers: int, warp_size: int) -> int:
    """The waves that the registers of a SIMD can hold."""
    per_lane, unit = REGISTERS[warp_size]
    return min(WAVES[warp_size], per_lane // (-(-max(1, registers) // unit) * unit))


def check_plan(problem: Problem, device: DeviceProperties, plan: LaunchPlan) -> None:
    """Asserts that the plan covers the rows, that its programs fit, and that its reason gives the calculation."""
    plan_invariants.check_plan(problem, device, plan)
    config, used = plan.config, plan.resources
    assert used is not None
    assert device.warp_size is not None
    assert device.shared_memory is not None
    assert plan.occupancy is not None
    assert config.schedule in ("whole_row", "column_loop"), "the exchange between programs has not run on an AMD GPU"
    assert not config.reload
    assert config.max_registers is None, "Triton's AMD backend has no limit on registers"
    assert plan.occupancy >= 1
    assert plan.programs * config.num_warps * device.warp_size < 1 << 32, "HIP launches no more threads"
    per_simd = waves(used.registers, device.warp_size)
    assert plan.occupancy * config.num_warps <= 4 * per_simd
    assert plan.occupancy * used.shared_memory <= device.shared_memory
    if problem.column_writes:
        assert config.persistent
        assert plan.programs <= device.cores * plan.occupancy, "each program writes a row of partial sums"

    per_lane, unit = REGISTERS[device.warp_size]
    allocated = -(-max(1, used.registers) // unit) * unit
    formula = f"4*min({WAVES[device.warp_size]}, {per_lane}//{allocated})//{config.num_warps}"
    resident = device.cores * plan.occupancy
    assert f"occupancy {plan.occupancy} = min(waves {formula}={4 * per_simd // config.num_warps}" in plan.reason
    assert f"{device.cores} {device.core_name}s x {plan.occupancy} = {resident} resident programs" in plan.reason
    assert (
        f"{problem.rows} rows in {problem.tiles(config.rows)} tiles of {config.rows} x {config.cols}: " in plan.reason
    )
    assert (f"{used.spills} bytes per thread are spilled" in plan.reason) == (used.spills > 0)
