"""ROCm plans: invariants for any compiler, and decisions with a modeled compiler. No GPU is needed."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan_invariants import check_rocm_plan, problems
from tridal.devices import registry
from tridal.devices.types import DeviceProperties, KernelConfig, LaunchPlan, Probe, Problem, Resources
from tridal.errors import PlanError
from tridal.runtime import plan_check
from tridal_rocm.resources import occupancy

ROCM = registry.get("rocm")
ARCHITECTURES = ROCM.architectures()
MI300X, MI250X = ARCHITECTURES["gfx942"], ARCHITECTURES["gfx90a"]
MOST_COMPILED = 2
"""Kernels that are compiled for one plan, at most."""


def problem(cols: int, rows: int, dtype: str = "bfloat16", reads: int = 1, **traits: Any) -> Problem:
    """The problem of a forward (`reads=1`) or a gradient (`reads=2`)."""
    return Problem(cols=cols, inner=rows, reads=(dtype,) * reads, writes=(dtype,), passes=4 - reads, **traits)


def compiler(problem: Problem, device: DeviceProperties = MI300X) -> Probe:
    """Models a compiler. A thread needs registers for its elements, and spills 4 bytes for each one that it lacks."""

    def probe(config: KernelConfig) -> Resources:
        threads = (device.warp_size or 64) * config.num_warps
        elements = -(-config.rows * config.cols // threads) * (len(problem.reads) + len(problem.column_writes))
        needed = 22 + elements * problem.accumulator // 4 * config.num_stages
        allowed = min(256, (device.registers or 0) // threads)
        return Resources(min(needed, allowed), max(0, 4 * (needed - allowed)), 4 * config.num_warps)

    return probe


def plan(problem: Problem, device: DeviceProperties = MI300X) -> LaunchPlan:
    """The plan with a modeled compiler."""
    return ROCM.plan(problem, device, compiler(problem, device), {})


# Invariants


@settings(max_examples=150, deadline=None)
@given(problems(), st.sampled_from(sorted(ARCHITECTURES)), st.data())
def test_invariants_hold_for_every_problem_and_every_compiler(problem: Problem, arch: str, data: st.DataObject) -> None:
    device = ARCHITECTURES[arch]
    probed: dict[KernelConfig, Resources] = {}
    spills = data.draw(st.sampled_from([st.just(0), st.integers(0, 100), st.just(1000)]))
    lds = data.draw(st.sampled_from([st.just(0), st.integers(0, 4096), st.integers(0, 200_000)]))

    def probe(config: KernelConfig) -> Resources:
        most = min(512, (device.registers or 0) // ((device.warp_size or 0) * config.num_warps))
        registers = data.draw(st.integers(1, most))
        return probed.setdefault(config, Resources(registers, data.draw(spills), data.draw(lds)))

    try:
        plan = ROCM.plan(problem, device, probe, {})
    except PlanError:
        assert min(used.shared_memory for used in probed.values()) > 65_536 - 1280, "only the LDS can be too small"
        return
    finally:
        assert len(probed) <= MOST_COMPILED
    assert probed[plan.config] == plan.resources
    check_rocm_plan(problem, device, plan)
    plan_check.check_plan(ROCM, problem, device, plan, probe)
    if probed[plan.config].spills:
        fitting = [used.spills for config, used in probed.items() if occupancy(config, used, device)[0]]
        assert probed[plan.config].spills <= min(fitting), "another configuration spills less"


# Decisions, with a modeled compiler


SUMS, UNALIGNED = {"column_writes": ("float32",)}, {"aligned": False}
MORE_TENSORS = {"row_reads": ("float32",) * 2, "column_reads": ("bfloat16",) * 2, "row_writes": ("float32",)}


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        # rows of more elements than 64 registers hold are column loops
        (problem(65_536, 4096), {"schedule": "whole_row"}),
        (problem(65_537, 4096), {"schedule": "column_loop"}),
        (problem(16_384, 4096, "float64", 2), {"schedule": "whole_row"}),
        (problem(16_385, 4096, "float64", 2), {"schedule": "column_loop"}),
        # unaligned rows with several vectors are peeled, but not with sums over rows
        (problem(781, 4096, **UNALIGNED), {"peel": True}),
        (problem(31, 4096, **UNALIGNED), {"peel": False}),
        (problem(781, 4096, **UNALIGNED, **SUMS), {"peel": False}),
        # programs loop only if they sum over rows, or if HIP launches too few threads for all tiles
        (problem(16_384, 5_000_000), {"persistent": True}),
        (problem(4096, 100_000, reads=2, **SUMS), {"persistent": True}),
        (problem(4096, 100_000, reads=2), {"persistent": False}),
        # inner-dim rows fill cache lines if there are enough tiles
        (problem(50_257, 100_000, layout="inner"), {"rows": 64}),
        (problem(50_257, 512, layout="inner"), {"rows": 32}),
        # tensors per row and per column, and the number of statistics, change nothing
        (problem(4096, 4096, **MORE_TENSORS, statistics=1), asdict(plan(problem(4096, 4096)).config)),
    ],
)
def test_decision(problem: Problem, expected: dict[str, Any]) -> None:
    found = plan(problem).config
    assert {name: getattr(found, name) for name in expected} == expected


def test_configurations_that_do_not_fit_in_the_lds_are_skipped() -> None:
    def probe(config: KernelConfig) -> Resources:
        return Resources(64, 0, config.rows * config.cols * 4 if config.rows > 1 else 0)

    rows = Problem(cols=1000, inner=1001, outer=32, layout="inner", aligned=False)
    config = ROCM.plan(rows, MI300X, probe, {}).config
    assert config.rows * config.cols * 4 <= 65_536
    with pytest.raises(PlanError, match=r"does not fit on AMD Instinct MI300X: min\(.*LDS 65536//"):
        ROCM.plan(rows, MI300X, lambda config: Resources(64, 0, 1 << 20), {})


@pytest.mark.parametrize("traits", [{"statistics": 0}, {"row_writes": ("float32",)}])
def test_a_column_loop_that_reads_once_does_not_depend_on_the_cache(traits: dict[str, Any]) -> None:
    once = replace(problem(131_072, 100_000), **traits)
    once = once if once.statistics == 0 else replace(once, writes=())
    launch_plan = plan(once)
    assert (launch_plan.schedule, launch_plan.programs) == ("column_loop", 4 * MI300X.cores)
    assert "read twice" not in launch_plan.reason
