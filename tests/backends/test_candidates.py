"""Two candidates at most: a search on estimates, which the compiler's report for the first candidate corrects."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from tridal.devices import registry
from tridal.devices.types import KernelConfig, Resources
from tridal.errors import PlanError
from tridal_accelerator.candidates import Candidates, Estimate
from tridal_accelerator.gpu import Compiled, DeviceProblem
from tridal_cuda.gpu_problem import GpuProblem
from tridal_cuda.resources import occupancy

H100 = registry.get("cuda").architectures()["sm_90"]
PROBLEM = DeviceProblem(4096, 4096, device=H100, probe=lambda config: Resources(1, 0, 0))
WHOLE_ROW, LOOP = KernelConfig("whole_row", 1, 4096), KernelConfig("column_loop", 1, 1024)
COOPERATIVE = KernelConfig("cooperative", 1, 1024, programs_per_row=4)
LIMITS = (64, 96, 128, 168, None)


@dataclass
class Compiler:
    """A compiler of kernels that need so many registers. It records what it compiles."""

    needed: int
    refuses: bool = False

    def __post_init__(self) -> None:
        self.compiled: list[KernelConfig] = []

    def __call__(self, config: KernelConfig) -> Resources:
        self.compiled.append(config)
        if self.refuses and config.programs_per_row > 1:
            raise PlanError("no cooperative launches")
        limit = config.max_registers or 255
        return Resources(min(limit, self.needed + 30), max(0, 6 * (self.needed - limit)), 0)


def choose(compiler: Compiler, estimated: float, *configs: KernelConfig, **others: Any) -> Compiled:
    """Chooses the first of some configurations that does not spill."""
    candidates = Candidates(compiler, lambda config: Estimate(estimated, estimated + 30, 255, 0))

    def fit(config: KernelConfig) -> Compiled:
        resources = candidates(config)
        return Compiled(PROBLEM, config, resources, *occupancy(config, resources, H100))

    def tried(config: KernelConfig) -> Compiled | None:
        try:
            return fit(config)
        except PlanError:
            return None

    return candidates.choose(lambda: map(tried, configs), fit, **others)


LIMITED = [replace(WHOLE_ROW, max_registers=limit) for limit in LIMITS]


@pytest.mark.parametrize("needed", [60, 200])
def test_a_right_estimate_compiles_one_candidate(needed: int) -> None:
    compiler = Compiler(needed)
    found = choose(compiler, needed, *LIMITED)
    assert compiler.compiled == [found.config]
    assert found.resources.spills == 0


@pytest.mark.parametrize("needed", [90, 120, 160, 200])
@pytest.mark.parametrize("estimated", [20, 50, 70])
def test_the_second_candidate_has_the_registers_that_the_first_one_lacked(needed: int, estimated: int) -> None:
    compiler = Compiler(needed)
    found = choose(compiler, estimated, *LIMITED)
    assert len(compiler.compiled) == (2 if needed > (compiler.compiled[0].max_registers or 255) else 1)
    expected = next(config for config in LIMITED if (config.max_registers or 255) >= needed)
    assert (found.config, found.resources.spills) == (expected, 0)


def test_an_estimate_that_is_too_high_is_corrected_by_the_registers_that_the_first_candidate_uses() -> None:
    compiler = Compiler(60)
    assert choose(compiler, 120, *LIMITED).config.max_registers == 96
    assert [config.max_registers for config in compiler.compiled] == [128, 96]


def test_a_compiler_that_always_spills_compiles_two_and_the_better_one_is_taken() -> None:
    compiler = Compiler(1000)
    found = choose(compiler, 70, *LIMITED)
    assert len(compiler.compiled) == 2
    assert found.resources.spills == min(Compiler(1000)(config).spills for config in compiler.compiled)


def test_without_cooperative_launches_another_schedule_is_compiled() -> None:
    compiler = Compiler(60, refuses=True)
    assert choose(compiler, 60, COOPERATIVE, LOOP).config == LOOP
    assert compiler.compiled == [COOPERATIVE, LOOP]


@pytest.mark.parametrize(("cols", "warps"), [(2_000_000, 8), (5_000_000, 4), (300_000, 4)])
def test_a_safe_configuration_has_all_programs_of_a_row_resident(cols: int, warps: int) -> None:
    per_row = -(-cols // 8192)
    config = KernelConfig("cooperative", 1, 8192, warps, programs_per_row=per_row)
    problem = GpuProblem(cols, 8, device=H100, probe=lambda config: Resources(1, 0, 0))
    safe = problem.with_resident_row(config)
    programs = occupancy(safe, Resources(safe.max_registers or 255, 0, 0), H100)[0]
    assert programs * H100.cores >= per_row
    assert (safe == config) == (occupancy(config, Resources(255, 0, 0), H100)[0] * H100.cores >= per_row)


@pytest.mark.parametrize(("programs_per_row", "runs"), [(1, True), (132, True), (133, False)])
def test_programs_that_exchange_statistics_are_all_resident(programs_per_row: int, runs: bool) -> None:
    config = KernelConfig("cooperative", 1, 1024, programs_per_row=programs_per_row)
    problem = GpuProblem(200_000, 8, device=H100, probe=lambda config: Resources(1, 0, 0), statistics=2)
    assert Compiled(problem, config, Resources(64, 0, 0), 1, "1").runs is runs
