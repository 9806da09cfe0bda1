"""CUDA plans: invariants for any compiler, and decisions with a modeled compiler.

No GPU is needed. A problem has no op, so these tests name traits: a forward reads one tensor, a gradient reads two.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan_invariants import check_cuda_plan, compiler, most_spilled, problems
from tridal.devices import registry
from tridal.devices.types import KERNEL_CONFIG, DeviceProperties, KernelConfig, LaunchPlan, Problem, Resources
from tridal.errors import PlanError
from tridal.runtime import plan_check
from tridal_cuda import tuning
from tridal_cuda.resources import occupancy

CUDA = registry.get("cuda")
ARCHITECTURES = CUDA.architectures()
H100 = ARCHITECTURES["sm_90"]


def problem(cols: int, rows: int, dtype: str = "float32", reads: int = 1, **traits: Any) -> Problem:
    """The problem of a forward (`reads=1`) or a gradient (`reads=2`)."""
    traits = {"passes": 4 - reads, "live_tiles": 2 * reads - 1, "statistics": 3 - reads, **traits}
    return Problem(cols=cols, inner=rows, reads=(dtype,) * reads, writes=(dtype,), **traits)


def plan(problem: Problem, device: DeviceProperties = H100) -> LaunchPlan:
    """The plan with a modeled compiler."""
    return CUDA.plan(problem, device, compiler(problem), {})


# Invariants


@settings(max_examples=200, deadline=None)
@given(problems(), st.sampled_from(sorted(ARCHITECTURES)), st.data())
def test_invariants_hold_for_every_problem_and_every_compiler(problem: Problem, arch: str, data: st.DataObject) -> None:
    device = ARCHITECTURES[arch]
    probed: dict[KernelConfig, Resources] = {}
    spills = data.draw(st.sampled_from([st.integers(0, 100), st.just(1000), st.sampled_from([0, 4, 40, 65, 1000])]))

    def probe(config: KernelConfig) -> Resources:
        most = min(255, 65_536 // (32 * config.num_warps), config.max_registers or 255)
        registers = data.draw(st.integers(min(16, most), most))
        shared_memory = config.rows * config.cols * problem.itemsize * (config.num_stages - 1)
        resources = Resources(registers, data.draw(spills), shared_memory)
        return probed.setdefault(config, resources)

    try:
        plan = CUDA.plan(problem, device, probe, {})
    except PlanError:
        needed = max(resources.shared_memory for resources in probed.values())
        assert needed > (device.shared_memory or 0), "only shared memory can be too small"
        return
    assert probed[plan.config] == plan.resources
    assert len(probed) <= 2
    if problem.statistics and not problem.column_writes:
        assert max(config.programs_per_row for config in probed) <= 8 * device.cores, "wide exchanges compile slowly"
    check_cuda_plan(problem, device, plan)
    plan_check.check_plan(CUDA, problem, device, plan, probe)
    if probed[plan.config].spills > most_spilled(problem, plan.config):
        others = [r.spills for c, r in probed.items() if c.programs_per_row == 1 and occupancy(c, r, device)[0]]
        assert probed[plan.config].spills <= min(others, default=1000), "another configuration spills less"
    unlimited = probed.get(replace(plan.config, max_registers=None))
    if unlimited is not None and plan.config.schedule == "cooperative" and plan.config.persistent:
        more = (plan.occupancy or 0) - occupancy(plan.config, unlimited, device)[0]
        assert (plan.resources or unlimited).spills <= unlimited.spills + tuning.MAX_SPILL_COOPERATIVE * max(0, more)


# Decisions, with a modeled compiler


UNALIGNED, STRIDED, INNER = {"aligned": False}, {"layout": "strided", "aligned": False}, {"layout": "inner"}
COOPERATIVE, WHOLE_ROW = {"schedule": "cooperative"}, {"schedule": "whole_row"}
RELOAD, NO_RELOAD, ONE_SHOT = {"reload": True}, {"reload": False}, {"persistent": False}
LOOP = {"schedule": "column_loop", "reload": True}


@pytest.mark.parametrize(
    ("problem", "arch", "expected"),
    [
        # wide 16-bit rows are cooperative with reload, if their blocks have little padding and the L1 cache is large
        (problem(65_536, 2048, "bfloat16"), "sm_90", {**COOPERATIVE, **RELOAD, "num_warps": 4}),
        (problem(70_001, 1900, "bfloat16", **UNALIGNED), "sm_90", {**COOPERATIVE, **RELOAD, "peel": True}),
        (problem(20_480, 4096, "bfloat16"), "sm_90", NO_RELOAD),
        (problem(65_536, 2048, "bfloat16"), "sm_86", NO_RELOAD),
        # wide 16-bit gradients are whole rows with reload if there are enough
        (problem(8208, 20_000, "float16", 2), "sm_90", {**WHOLE_ROW, **RELOAD, "peel": False}),
        (problem(10_007, 20_000, "float16", 2, **UNALIGNED), "sm_90", {**WHOLE_ROW, **RELOAD, "peel": True}),
        (problem(10_007, 500, "float16", 2, **UNALIGNED), "sm_90", COOPERATIVE),
        # whole rows that fill their tile reload, but not with a mask
        (problem(15_000, 600, "float16"), "sm_90", {**WHOLE_ROW, **RELOAD}),
        (problem(8192, 60_000, "bfloat16", scale_mask=True), "sm_90", NO_RELOAD),
        # the widest 32-bit tile has more threads if it is full
        (problem(32_000, 8192), "sm_90", {**WHOLE_ROW, "num_warps": 32}),
        # few rows are one-shot, with reload if they fit in the caches
        (problem(128_256, 8, "float16"), "sm_90", {**COOPERATIVE, **ONE_SHOT, **RELOAD}),
        (problem(50_257, 32, "bfloat16", **UNALIGNED), "sm_90", {**COOPERATIVE, **ONE_SHOT, **RELOAD}),
        (problem(50_257, 32, "bfloat16", **UNALIGNED), "sm_80", NO_RELOAD),
        (problem(50_257, 32, "bfloat16", **STRIDED), "sm_90", NO_RELOAD),
        (problem(65_536, 128, "bfloat16", 2), "sm_90", {"persistent": True}),
        (problem(131_072, 16, "bfloat16"), "sm_90", asdict(plan(problem(131_072, 5, "bfloat16")).config)),
        # inner-dim rows reload full cache lines if they are many and 16-bit, and are whole rows if one tile holds them
        (problem(512, 262_144, "bfloat16", **INNER), "sm_90", {**RELOAD, "rows": tuning.CACHE_LINE // 2}),
        (problem(512, 2048, "bfloat16", **INNER), "sm_90", NO_RELOAD),
        (problem(5000, 1000, outer=64, **INNER), "sm_90", COOPERATIVE),
        # long ones are loops, if they fill cache lines, have enough data, and vectors and the L1 cache allow it
        *((problem(cols, 4096, dtype, reads, **INNER), "sm_90", {**LOOP, "rows": rows, "cols": 8192 // rows})
          for dtype, cols, rows in (("bfloat16", 6144, 64), ("float32", 12_288, 32)) for reads in (1, 2)),
        *((problem(6143, 4096, "bfloat16", reads, **INNER), "sm_90", COOPERATIVE) for reads in (1, 2)),
        (problem(50_257, 32, "bfloat16", outer=16, **INNER), "sm_90", COOPERATIVE),
        (problem(50_257, 64, "bfloat16", **INNER), "sm_90", COOPERATIVE),
        (problem(50_257, 512, "bfloat16", **INNER, **UNALIGNED), "sm_90", COOPERATIVE),
        (problem(50_257, 512, "bfloat16", **INNER, scale_mask=True), "sm_90", COOPERATIVE),
        (problem(50_257, 512, "bfloat16", **INNER), "sm_86", COOPERATIVE),
        # the parts of rows that programs compute at the same time fit in the L1 caches, or a row has 64 programs
        (problem(16_384, 4096, "bfloat16", **INNER), "sm_90", {**LOOP, "programs_per_row": 16}),
        (problem(16_384, 4096, "bfloat16", 2, **INNER), "sm_90", {**LOOP, "programs_per_row": 32}),
        (problem(50_257, 4096, "bfloat16", 2, **INNER), "sm_90", {**LOOP, "programs_per_row": 64}),
        (problem(16_384, 512, "bfloat16", **INNER), "sm_90", {**LOOP, "programs_per_row": 32}),
        # a tile has several narrow rows
        *((problem(3, 1_000_000, **kind), "sm_90", {"rows": tuning.NARROW_TILE_ELEMENTS // 4, "cols": 4})
          for kind in (INNER, UNALIGNED)),
        # three tensors of numbers per row: 682 rows have 4 KiB, and a tile has a power of two
        (replace(problem(1, 1_000_000, "float16", 3, statistics=1), writes=(), row_writes=("float16",)), "sm_90",
         {**WHOLE_ROW, "rows": 512}),
    ],
)  # fmt: skip
def test_decision(problem: Problem, arch: str, expected: dict[str, Any]) -> None:
    found = plan(problem, ARCHITECTURES[arch])
    assert {name: getattr(found.config, name) for name in expected} == expected
    in_flight = (found.occupancy or 0) * problem.cols * problem.bytes_read
    if found.config.reload and found.schedule == "whole_row" and problem.layout == "row":
        assert tuning.BYTES_IN_FLIGHT < in_flight <= tuning.COOPERATIVE_BYTES_IN_FLIGHT, "about half of the cache"
    if found.config.reload and not found.config.persistent and found.schedule == "cooperative":
        programs_per_core = -(-found.programs_for(problem.tiles(found.config.rows)) // H100.cores)
        assert programs_per_core * found.config.cols * problem.bytes_read <= (H100.shared_memory or 0), "it fits"


def test_programs_that_do_not_loop_are_planned_only_if_all_are_resident() -> None:
    """The first configuration spills, with so few registers that all one-shot programs seem to be resident."""

    def probe(config: KernelConfig) -> Resources:
        return Resources(64, 2712, 8) if config.persistent else Resources(158, 0, 8)

    few = problem(11_781, 144, reads=2, outer=3, **STRIDED)
    assert CUDA.plan(few, ARCHITECTURES["sm_80"], probe, {}).config.persistent


def test_a_given_configuration_of_programs_that_do_not_loop_needs_all_of_them() -> None:
    given = {KERNEL_CONFIG: KernelConfig("cooperative", 1, 4096, 4, programs_per_row=16, persistent=False)}
    with pytest.raises(PlanError, match=r"not all programs of a launch, which do not loop, are resident: 132 SMs x "):
        CUDA.plan(problem(65_536, 4096), H100, lambda config: Resources(64, 0, 0), given)


def test_a_configuration_that_does_not_fit_raises_with_the_formula() -> None:
    with pytest.raises(PlanError, match=r"does not fit on NVIDIA H100 SXM: min\(.*shared memory 233472//"):
        CUDA.plan(problem(64, 64), H100, lambda config: Resources(32, 0, 1 << 20), {})


def test_sums_without_statistics_have_all_programs_of_a_row_even_if_not_all_are_resident() -> None:
    wide = problem(540_673, 1, "float16", statistics=0, column_writes=("float16",))
    made = CUDA.plan(wide, H100, lambda config: Resources(169, 1000, 0), {})
    assert made.programs == made.config.programs_per_row > 132 * (made.occupancy or 0)


@pytest.mark.parametrize("statistics", [0, 2])
def test_a_given_configuration_needs_all_programs_of_a_row_only_to_exchange_statistics(statistics: int) -> None:
    """One or two of these programs fit on one of 132 multiprocessors."""
    config = KernelConfig("cooperative", 1, 1024, 32, programs_per_row=200)
    given, wide = {KERNEL_CONFIG: config}, problem(200 * 1024, 64, statistics=statistics)
    assert CUDA.plan(wide, H100, lambda config: Resources(32, 0, 0), given).programs % 200 == 0
    if statistics:
        with pytest.raises(PlanError, match=r"not all programs of a row are resident: 132 SMs x min\(registers .*=1,"):
            CUDA.plan(wide, H100, lambda config: Resources(64, 0, 0), given)
    else:
        assert CUDA.plan(wide, H100, lambda config: Resources(64, 0, 0), given).programs == 64 * 200
