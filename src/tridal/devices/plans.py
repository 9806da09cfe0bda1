"""A kernel configuration, and a launch plan with its programs and resources. Imports the standard library only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias, get_args

Schedule: TypeAlias = Literal["whole_row", "cooperative", "column_loop"]

SCHEDULES: tuple[str, ...] = get_args(Schedule)
FEATURES = ("peel", "reload", "lanes", "rest_cols", "scale_mask")
"""Optional features of a backend; `Backend.features` describes them."""
MAX_PROGRAMS = (1 << 31) - 1
"""The limit of the programs of a launch: Triton numbers them with 32 bits."""


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """The compile-time part of a plan: the schedule, the tile and the warps. `rows` and `cols` are powers of two."""

    schedule: Schedule
    """"whole_row": one program computes whole rows. "cooperative": several programs compute one row together and
    exchange its statistics. "column_loop": one or several programs loop over blocks of columns, for the statistics and
    then for the results."""
    rows: int
    """Rows of a tile, a power of two. A tile has at most 2^20 elements."""
    cols: int
    """Columns of a tile, a power of two: at least a row's length for "whole_row", else the columns of a block. With
    `peel`, the tile need not hold the head and the tail."""
    num_warps: int = 4
    """Warps per program, a power of two."""
    num_stages: int = 1
    """Tiles in flight in the loop over tiles (or over blocks of columns); above 1, loads are pipelined."""
    programs_per_row: int = 1
    """Programs that compute a row together: above 1 for "cooperative", at least 1 for "column_loop", else 1. They must
    all be resident at the same time if they exchange statistics."""
    max_registers: int | None = None
    """Limit on the registers of a thread; None leaves it to the compiler."""
    peel: bool = False
    """Whether kernels compute the unaligned head and tail of each row apart from its aligned vectors ("row" layout)."""
    exp2_bias: float | None = None
    """Mean relative error of the device's exp2 in float32. Kernels compute exp by exp2 and correct this error.
    Zero means exp2 without a correction. None means the device's exp, which float64 needs."""
    persistent: bool = True
    """Whether a program loops over tiles. If not, it computes one tile, or its part of one, with fewer registers."""
    reload: bool = False
    """Whether each pass loads its elements again, from the core's cache, instead of keeping them in registers. For
    "column_loop" with several programs per row: whether the cache is asked to keep them for the second loop."""
    lanes: int = 1
    """For "column_loop": number of parts of a row with their own statistics, a power of two. They are combined after
    the loop. With as many lanes as threads, threads exchange nothing in the loop."""
    rest_cols: int = 0
    """For "whole_row": columns of a second tile with the rest of a row, a power of two. The first tile is then full: a
    row of 1,152 columns fills tiles of 1,024 and 128 columns, but 56% of one tile. 0 means that a row has one tile."""

    @property
    def row_cols(self) -> int:
        """Columns of a tile and of its rest."""
        return self.cols + self.rest_cols


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

    def programs_for(self, tiles: int, blocks: int = 1) -> int:
        """Counts the programs of a launch with so many tiles. Each of `Problem.blocks` has as many, and some."""
        needed, fewest = tiles * self.config.programs_per_row, blocks * self.config.programs_per_row
        programs = needed if self.programs is None else min(needed, self.programs)
        return programs if blocks == 1 else max(1, programs // fewest) * fewest

    @property
    def schedule(self) -> Schedule:
        """The schedule of the configuration."""
        return self.config.schedule

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain data for JSON."""
        return {"schedule": self.schedule, **asdict(self)}
