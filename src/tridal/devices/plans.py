"""A launch plan: the kernel configuration, the programs and the resources. Imports the standard library only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tridal.devices.kernel_config import KernelConfig, Schedule
from tridal.devices.problem import Problem

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
    """The configuration and the number of programs for a problem on a device, and the reason for them in words."""

    config: KernelConfig
    """The compile-time part of the plan."""
    programs: int
    """Programs to launch: a multiple of `programs_per_row`. If not persistent, `programs_per_row` for each tile."""
    reason: str
    """The numbers behind the plan, for users."""
    occupancy: int | None = None
    """Programs that can be resident on one core; None if the backend does not know it."""
    resources: Resources | None = None
    """The compiler's report for `config`, for users; None if the backend did not compile it."""
    row_range: tuple[int, int] | None = None
    """The first and the last number of rows for which the backend gives this configuration. None means only the rows of
    the problem. Only problems with `outer == 1` and another layout than "inner" have a range."""
    tiles_per_group: int | None = None
    """How `programs` follows from the rows in `row_range`: there is a group of `programs_per_row` programs for so many
    tiles. None means that `programs` is the same for all these rows, or that there is a group for each tile if not
    persistent."""
    column_range: tuple[int, int] | None = None
    """For a problem of one row: the first and the last number of columns with the same divisibility by 16 for which the
    backend gives this plan. None means only the columns of the problem."""
    compilations: int = field(default=0, compare=False)
    """Configurations that were compiled to make this plan. tridal counts them; a stored plan has 0."""

    def programs_for(self, problem: Problem, rows: int) -> int:
        """Returns the number of programs for another number of rows in `row_range`, for a problem with `outer == 1`."""
        config, tiles_per_group = self.config, self.tiles_per_group or (None if self.config.persistent else 1)
        if tiles_per_group is None:
            return self.programs
        return problem.tiles(config.rows, rows) // tiles_per_group * config.programs_per_row

    @property
    def schedule(self) -> Schedule:
        """The schedule of the configuration."""
        return self.config.schedule

    @property
    def groups(self) -> int:
        """Number of groups of programs that compute the same rows."""
        return self.programs // self.config.programs_per_row

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {"schedule": self.schedule, **asdict(self)}
