"""Compiles configurations by the probe, and limits registers so that more programs are resident."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tridal.devices.types import DeviceProperties, KernelConfig, Probe, Problem, Resources
from tridal.errors import PlanError
from tridal_cuda.occupancy import REGISTER_UNIT, max_registers_for, occupancy
from tridal_cuda.sizes import FEW_ELEMENTS_PER_THREAD, RELOAD_BYTES_IN_FLIGHT, bytes_per_tile, reads_several

BYTES_IN_FLIGHT = 96 << 10
"""Bytes of resident tiles that keep a multiprocessor's share of the memory busy. Programs load a third of the time."""
MAX_SPILL_RELOAD = 8
"""Bytes per thread that a configuration with `reload` may spill. So few cost no time."""
MAX_SPILL_COOPERATIVE = 32
"""Additional bytes per thread that are worth one more resident program where programs wait for each other."""
MAX_SPILL_ONE_SHOT = 64
"""Bytes per thread that a one-shot configuration may spill. Its programs wait for each other only once."""
_MAX_REGISTERS = 255
"""Registers per thread that the hardware allows."""
_MAX_LIMITS_TRIED = 3
"""Register limits that are tried for one configuration, because each takes a compilation."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A configuration, its resources, and its occupancy."""

    config: KernelConfig
    resources: Resources
    programs: int
    """Programs that one multiprocessor can hold."""
    formula: str
    """The calculation of `programs` in words."""

    def bytes_in_flight(self, problem: Problem) -> int:
        """Bytes of the tiles that are resident on one multiprocessor."""
        return self.programs * bytes_per_tile(self.config, problem)


def fit(config: KernelConfig, device: DeviceProperties, probe: Probe) -> Fit:
    """Compiles a configuration and computes its occupancy.

    Raises:
        PlanError: a multiprocessor cannot hold one program. A pipelined configuration returns 0 programs instead.
    """
    resources = probe(config)
    programs, formula = occupancy(config, resources, device)
    if programs == 0 and config.num_stages == 1:
        raise PlanError(f"{config} does not fit on {device.name}: {formula}")
    return Fit(config, resources, programs, formula)


def fit_whole_row_reload(config: KernelConfig, problem: Problem, device: DeviceProperties, probe: Probe) -> Fit:
    """Fits a whole-row configuration with `reload`, with a register limit.

    The limit admits as many programs as fill the part of the L1 cache that `reload` uses, or fewer if that spills. More
    programs would evict each other's rows from the cache. The limit also makes the compiler load earlier.
    """
    wanted = -(-RELOAD_BYTES_IN_FLIGHT // bytes_per_tile(config, problem))
    limits = {min(_MAX_REGISTERS, max_registers_for(programs, config, device)) for programs in range(1, wanted + 1)}
    # Without a limit if the device's number of registers is not known.
    tried: list[int | None] = [*sorted(limits - {0})[:_MAX_LIMITS_TRIED]] or [None]
    # If two tensors are read, one more program is worth a few spilled bytes.
    max_spill = MAX_SPILL_RELOAD if reads_several(problem) else 0
    for limit in tried:
        fitted = fit(replace(config, max_registers=limit), device, probe)
        if fitted.resources.spills <= max_spill:
            break
    return fitted


def fit_resident(config: KernelConfig, programs: int, device: DeviceProperties, probe: Probe) -> Fit | None:
    """Fits a configuration so that a multiprocessor can hold `programs` programs, with a register limit if necessary.

    Returns None if it cannot hold them, or if the kernel then spills more than `MAX_SPILL_ONE_SHOT`.
    """
    limit = max_registers_for(programs, config, device)
    if limit <= FEW_ELEMENTS_PER_THREAD:  # fewer registers than a thread has elements
        return None
    fitted = fit(config, device, probe)
    if fitted.programs < programs:
        fitted = fit(replace(config, max_registers=limit), device, probe)
    return fitted if fitted.programs >= programs and fitted.resources.spills <= MAX_SPILL_ONE_SHOT else None


def with_register_limit(
    fitted: Fit, wanted_bytes: int, problem: Problem, device: DeviceProperties, probe: Probe, max_spill: int = 0
) -> Fit:
    """Limits registers for one more resident program, again and again, until `wanted_bytes` are in flight.

    It stops earlier if a limit admits no further program, or if the limit adds more than `max_spill` spilled bytes per
    thread. Without a limit, the compiler uses more registers than it needs, because it does not know how many programs
    are wanted.
    """
    while fitted.bytes_in_flight(problem) < wanted_bytes:
        limit = max_registers_for(fitted.programs + 1, fitted.config, device)
        limited = replace(fitted.config, max_registers=limit)
        possible, _ = occupancy(limited, replace(fitted.resources, registers=limit), device)
        if limit < 1 or possible <= fitted.programs:
            break
        more = fit(limited, device, probe)
        if more.resources.spills > fitted.resources.spills:  # the compiler sometimes spills less with a lower limit
            lower = fit(replace(limited, max_registers=limit - REGISTER_UNIT), device, probe)
            more = min(more, lower, key=lambda candidate: candidate.resources.spills)
        if more.programs <= fitted.programs or more.resources.spills > fitted.resources.spills + max_spill:
            break
        fitted = more
    return fitted
