"""Makes the launch plan for an Intel GPU: the schedule, its configuration and the number of programs.

No plan is cooperative until a device shows that its programs are resident together. Rows are not peeled, because a gain
was never measured. Rows that do not fit in registers are read twice, by `column_loop`.

The constants are calculated, not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace

from tridal.devices.types import (
    DeviceProperties,
    KernelConfig,
    LaunchPlan,
    Probe,
    Problem,
    Resources,
    next_power_of_2,
)
from tridal.errors import PlanError
from tridal_accelerator.candidates import Candidates, Estimate
from tridal_accelerator.gpu import Compiled, DeviceProblem, cdiv, count_programs
from tridal_xpu.resources import MAX_SPILL, MAX_WORK_ITEMS, occupancy, registers_per_item

_CACHE_LINE = 64  # bytes
_MAX_LAUNCHED_ITEMS = (1 << 31) - 1  # work-items of all programs of a launch: SYCL may count them with 32 bits
# A Max 1550 reads 1.6 TB/s per stack, so each of its 64 Xe-cores needs 26 KiB in flight for a latency of 1 us, and an
# Arc B580 needs 23 KiB for 456 GB/s and 20 Xe-cores. Programs load for a part of their time only.
_BYTES_IN_FLIGHT = 64 << 10
_MIN_PERSISTENT = 2  # programs per core that loop, so that one loads while another one computes
_FEW_REGISTERS = 16  # of a work-item, besides its elements
_ELEMENT_PART = 4  # elements take at most a fourth of the registers: passes, offsets and masks need the others
_MAX_ELEMENT_PART = 2  # and those of the widest rows a half
_EXP2_BIAS = 1e-9  # above zero, so that kernels correct the rounding of exp2's argument; exp2 itself was not measured


def plan(
    problem: Problem, device: DeviceProperties, probe: Probe | None, config: KernelConfig | None = None
) -> LaunchPlan:
    """Plans with `config`, or else with the first configuration that fits and spills little.

    `probe` is None if there is no compiler. The registers are then an estimate, which has no part in the plan.

    Raises:
        PlanError: no program of any configuration fits on an Xe-core.
    """

    def compiled(config: KernelConfig) -> Resources:
        found = Resources(0, 0, 0) if probe is None else probe(config)
        if found.registers:
            return found
        estimate = _estimate(gpu_problem, config)
        return replace(found, registers=int(min(estimate.used, estimate.most)))

    def fit(config: KernelConfig) -> _Fitted:
        config = replace(config, exp2_bias=gpu_problem.exp2_bias(_EXP2_BIAS))
        resources = gpu_problem.probe(config)
        return _Fitted(gpu_problem, config, resources, *occupancy(config, resources, device))

    candidates = Candidates(compiled, lambda config: _estimate(gpu_problem, config))
    gpu_problem = DeviceProblem(**asdict(problem), device=device, probe=candidates)
    if config is None:
        fitted = candidates.choose(lambda: map(fit, _configs(gpu_problem)), fit)
    else:
        gpu_problem = replace(gpu_problem, probe=compiled)
        fitted = fit(config)
    if not fitted.occupancy:
        raise PlanError(f"{fitted.config} does not fit on {device.name}: {fitted.formula}")
    tiles = problem.tiles(fitted.config.rows)
    programs, explanation = _count_programs(fitted, tiles)
    items = (device.warp_size or 32) * fitted.config.num_warps
    elements = max(1, fitted.config.rows * fitted.config.cols // items) * gpu_problem.registers_per_element
    explanation += f"; {elements} of a work-item's {registers_per_item(device)} registers hold elements"
    found = fitted.launch_plan(programs, tiles, explanation)
    return found if probe is not None else replace(found, resources=None)


class _Fitted(Compiled):
    """A compiled configuration, which may spill a little."""

    @property
    def few_spills(self) -> bool:
        return self.resources.spills <= MAX_SPILL


def _estimate(problem: DeviceProblem, config: KernelConfig) -> Estimate:
    elements = max(1, config.rows * config.cols // ((problem.device.warp_size or 32) * config.num_warps))
    registers = _FEW_REGISTERS + elements * problem.registers_per_element
    return Estimate(registers, registers, registers_per_item(problem.device), 0)


def _count_programs(fitted: Compiled, tiles: int) -> tuple[int | None, str]:
    """Gives the `programs` of the plan, and the explanation for its `reason`.

    Programs that loop are as many as keep `_BYTES_IN_FLIGHT` in flight. More would write more partial sums.
    """
    if not fitted.config.persistent:
        return fitted.one_program_per_tile(tiles)
    device, in_flight = fitted.problem.device, fitted.problem.bytes_per_tile(fitted.config)
    per_core = min(fitted.occupancy, max(_MIN_PERSISTENT, cdiv(_BYTES_IN_FLIGHT, in_flight)))
    programs = count_programs(fitted.problem, tiles, device.cores * per_core)
    explanation = f"{programs} programs loop over the tiles, at most {per_core} per {device.core_name}, "
    return programs, explanation + f"with {per_core} x {in_flight} bytes in flight"


def _configs(problem: DeviceProblem) -> Iterator[KernelConfig]:
    """Yields configurations in the order in which they are tried."""
    yield from _whole_rows(problem)
    if not problem.whole_rows:
        yield from _column_loops(problem)


def _whole_rows(problem: DeviceProblem) -> Iterator[KernelConfig]:
    """Yields configurations of `whole_row`, each with twice the warps, too; fewer and fewer inner-dim rows per tile."""
    warp_size, cols = problem.device.warp_size or 32, next_power_of_2(problem.cols)
    registers, weight = registers_per_item(problem.device), problem.registers_per_element
    elements, most_elements = max(1, registers // _ELEMENT_PART // weight), registers // _MAX_ELEMENT_PART // weight
    rows = min_rows = next_power_of_2(problem.inner, max(1, elements * warp_size // cols))
    if problem.layout == "inner":
        min_rows, rows = _inner_rows(problem)
    while rows >= min_rows:
        if rows * cols <= MAX_WORK_ITEMS * most_elements:
            warps = max(1, min(MAX_WORK_ITEMS, rows * cols // elements) // warp_size)
            loop = bool(problem.column_writes) or 2 * problem.tiles(rows) * warps * warp_size > _MAX_LAUNCHED_ITEMS
            config = KernelConfig("whole_row", rows, cols, warps, persistent=loop)
            yield config
            if warps * warp_size < min(MAX_WORK_ITEMS, rows * cols):
                yield replace(config, num_warps=2 * warps)
        rows //= 2


def _column_loops(problem: DeviceProblem) -> Iterator[KernelConfig]:
    """Yields configurations of `column_loop`: with half of the elements, the tile is smaller and spills less."""
    items, rows = MAX_WORK_ITEMS // 2, _inner_rows(problem)[1] if problem.layout == "inner" else 1
    # Without the live tiles, the gradient of log_probs of 2x50257 in float32 spilled 334 bytes per work-item on PVC.
    weight = max(problem.registers_per_element, next_power_of_2(problem.live_tiles) * problem.accumulator // 4)
    for part in (_ELEMENT_PART, 2 * _ELEMENT_PART, 4 * _ELEMENT_PART):
        elements = items * max(1, registers_per_item(problem.device) // part // weight)
        cols = max(1, min(elements // rows, next_power_of_2(problem.cols)))
        yield KernelConfig("column_loop", rows, cols, items // (problem.device.warp_size or 32))


def _inner_rows(problem: DeviceProblem) -> tuple[int, int]:
    """The fewest inner-dim rows of a tile fill one cache line, and the most fill two."""
    line = _CACHE_LINE // problem.itemsize
    few = problem.tiles(2 * line) < problem.device.cores
    return next_power_of_2(problem.inner, line), next_power_of_2(problem.inner, line if few else 2 * line)
