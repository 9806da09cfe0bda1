"""Chooses a configuration by estimated resources, and compiles at most two candidates.

A search runs on estimates, and the configuration that it finds is compiled. Then it runs again with the compiler's
report, which also corrects the estimates. It ends with the same configuration, or with a second one that is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from tridal.devices.types import KernelConfig, Probe, Resources
from tridal.errors import PlanError
from tridal_accelerator.gpu import Compiled

SPILL_REGISTERS = 1 / 6
"""Registers that a kernel lacks for each byte that it spills: some values of 4 bytes are spilled more than once."""

_MUCH_MORE = 1.5
"""With so many times the estimated registers, the op's functions need them, whatever the schedule is."""

Found = TypeVar("Found", bound=Compiled)


def first_with_few_spills(fits: Iterable[Found | None]) -> Found | None:
    """Prefers the first result that runs with few spills, and else one with the fewest. None is no result."""
    tried: list[Found] = []
    for fit in filter(None, fits):
        if fit.runs and fit.few_spills:
            return fit
        tried.append(fit)
    return min(tried, key=lambda fit: (not fit.runs, fit.resources.spills), default=None)


class Estimate(NamedTuple):
    """The estimated resources of a configuration. Its register limit is not considered."""

    needed: float
    """Registers per thread without which the compiler spills."""
    used: float
    """Registers per thread that the compiler uses without a limit."""
    most: int
    """Registers per thread that the device has for so many threads."""
    shared_memory: int


class Candidates:
    """A probe that returns the compiler's report for configurations that were compiled, and else an estimate."""

    def __init__(self, probe: Probe, estimate: Callable[[KernelConfig], Estimate]) -> None:
        self._compile, self._estimate = probe, estimate
        self._compiled: dict[KernelConfig, Resources] = {}
        self._refused: PlanError | None = None
        self._corrections: dict[tuple[str, bool], tuple[float, float, float]] = {}
        """Factors for `needed` and `used`, and bytes of shared memory per element, by schedule and `reload`."""
        self._others = 1.0, 1.0, 0.0
        """The corrections for all others."""

    def __call__(self, config: KernelConfig) -> Resources:
        """Estimates, or compiles. Raises PlanError for cooperative configurations if the compiler refused one."""
        if self._refused is not None and config.programs_per_row > 1:
            raise self._refused
        if config in self._compiled:
            return self._compiled[config]
        needed, used, most, shared_memory = self._estimate(config)
        of_needed, of_used, more_memory = self._corrections.get((config.schedule, config.reload), self._others)
        limit = min(config.max_registers or most, most)
        spills = max(0, int((needed * of_needed - limit) / SPILL_REGISTERS))
        shared_memory += int(more_memory * config.rows * config.row_cols)
        return Resources(min(limit, int(used * of_used)), spills, shared_memory)

    def choose(
        self,
        search: Callable[[], Iterable[Found | None]],
        fit: Callable[[KernelConfig], Found],
        safe: Callable[[KernelConfig], KernelConfig] = lambda config: config,
    ) -> Found:
        """Returns the first result of `search` with few spills, compiled, or the better one of two such results.

        search() yields results with this probe. fit(config) makes the result for a configuration. safe(config) changes
        the second configuration, so that it runs even if the estimate is wrong.
        """

        def first() -> Found:
            found = first_with_few_spills(search())
            if found is None:  # `column_loop` fits all other problems
                raise PlanError("no tile holds a whole row, and the kernel needs whole rows")
            return found

        for change in (None, safe):
            found = first()
            if found.config in self._compiled:
                return found
            config = found.config if change is None else change(found.config)
            try:
                self._learn(config, self._compile(config))
            except PlanError as error:
                if config.programs_per_row == 1:
                    raise
                self._refused = error
        found = first()
        if found.config in self._compiled and found.runs and found.few_spills:
            return found
        return first_with_few_spills(fit(config) for config in reversed(self._compiled)) or found

    def _learn(self, config: KernelConfig, resources: Resources) -> None:
        """Corrects the estimates for configurations of this kind by the compiler's report."""
        self._compiled[config] = resources
        needed, used, most, shared_memory = self._estimate(config)
        registers, spills = resources.registers, resources.spills
        factor = (registers + spills * SPILL_REGISTERS) / needed if spills else min(1.0, registers / needed)
        # A kernel with a limit does not tell how many registers it would use without. They could be all.
        of_used = (registers if config.max_registers is None else most) / used
        more_memory = max(0, resources.shared_memory - shared_memory) / int(config.rows * config.row_cols)
        self._corrections[config.schedule, config.reload] = factor, of_used, more_memory
        if factor > _MUCH_MORE:
            self._others = factor, factor, 0.0
