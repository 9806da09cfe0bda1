"""A launch plan: the kernel configuration, the programs and the resources. Imports the standard library only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tridal.devices.kernel_config import KernelConfig, Schedule

MAX_PROGRAMS = (1 << 31) - 1
"""The limit of the programs of a launch: Triton numbers them with 32 bits."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What the compiler reports for a kernel."""

    registers: int
    """32-bit registers per thread."""
    spills: int
    """Bytes per thread that are spilled to memory."""
    shared_memory: int
    """Bytes of shared memory per program."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The configuration and the programs for a problem on a device, and the reason for them in words.

    It holds for all calls whose rounded problem is this one, see `Problem`.
    """

    config: KernelConfig
    """The compile-time part of the plan."""
    programs: int | None
    """If persistent, the largest number of programs of a launch: a multiple of `programs_per_row`. A launch has fewer
    if there are fewer tiles. If not persistent, None: a launch has `programs_per_row` programs for each tile."""
    reason: str
    """The numbers behind the plan, for users."""
    occupancy: int | None = None
    """Programs that can be resident on one core; None if the backend does not know it."""
    resources: Resources | None = None
    """The compiler's report for `config`, for users; None if the backend did not compile it."""
    compilations: int = field(default=0, compare=False)
    """Configurations that were compiled to make this plan. tridal counts them."""

    def programs_for(self, tiles: int) -> int:
        """Returns the number of programs of a launch with so many tiles."""
        needed = tiles * self.config.programs_per_row
        return needed if self.programs is None else min(needed, self.programs)

    @property
    def schedule(self) -> Schedule:
        """The schedule of the configuration."""
        return self.config.schedule

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {"schedule": self.schedule, **asdict(self)}
