"""Fits: configurations that the probe has compiled, with the number of programs that a multiprocessor can hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tridal.devices.types import KernelConfig, Resources
from tridal.errors import PlanError
from tridal_cuda.gpu_problem import GpuProblem
from tridal_cuda.resources import REGISTER_UNIT, max_registers_for, occupancy


@dataclass(frozen=True, slots=True)
class Fit:
    """A configuration, its resources, and its occupancy."""

    problem: GpuProblem
    config: KernelConfig
    resources: Resources
    programs: int
    """Programs that one multiprocessor can hold."""
    formula: str
    """The calculation of `programs` in words."""

    @property
    def resident(self) -> int:
        """Programs that the whole GPU can hold."""
        return self.programs * self.problem.device.cores

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of the tiles that are resident on one multiprocessor."""
        return self.programs * self.problem.bytes_per_tile(self.config)

    def with_register_limit(self, wanted_bytes: int, max_spill: int = 0) -> Fit:
        """Limits registers for one more resident program, again and again, until `wanted_bytes` are in flight.

        It stops if no limit admits one more program, or if the limit adds more than `max_spill` spilled bytes per
        thread. Without a limit, the compiler uses more registers than it needs, because it does not know how many
        programs are wanted.
        """
        fitted, problem = self, self.problem
        while fitted.bytes_in_flight < wanted_bytes:
            limit = max_registers_for(fitted.programs + 1, fitted.config, problem.device)
            limited = replace(fitted.config, max_registers=limit)
            possible, _ = occupancy(limited, replace(fitted.resources, registers=limit), problem.device)
            if limit < 1 or possible <= fitted.programs:
                break
            more = fit(limited, problem)
            if more.resources.spills > fitted.resources.spills:  # the compiler sometimes spills less with a lower limit
                lower = fit(replace(limited, max_registers=limit - REGISTER_UNIT), problem)
                more = min(more, lower, key=lambda candidate: candidate.resources.spills)
            if more.programs <= fitted.programs or more.resources.spills > fitted.resources.spills + max_spill:
                break
            fitted = more
        return fitted


def fit(config: KernelConfig, problem: GpuProblem) -> Fit:
    """Compiles a configuration and computes its occupancy.

    Raises:
        PlanError: a multiprocessor cannot hold one program. A pipelined configuration returns 0 programs instead.
    """
    config = replace(config, exp2_bias=problem.exp2_bias)
    resources = problem.probe(config)
    programs, formula = occupancy(config, resources, problem.device)
    if programs == 0 and config.num_stages == 1:
        raise PlanError(f"{config} does not fit on {problem.device.name}: {formula}")
    return Fit(problem, config, resources, programs, formula)
