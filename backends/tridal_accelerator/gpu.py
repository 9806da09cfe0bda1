"""Plans for GPUs: a problem with its GPU, and compiled configurations with their occupancy."""

from __future__ import annotations

from dataclasses import dataclass

from tridal.devices.types import DeviceProperties, KernelConfig, LaunchPlan, Probe, Problem, Resources, next_power_of_2

MIN_PEELED_VECTORS = 4
"""Narrower rows have too few aligned vectors to peel."""
_MAX_WAVES, _MAX_IDLE = 4, 0.1
"""Programs of blocks have more waves if more than this part of the programs would be idle at the end."""


def cdiv(value: int, divisor: int) -> int:
    """Divides, and rounds up."""
    return -(-value // divisor)


def round_up(value: int, unit: int) -> int:
    """Rounds up to a multiple of `unit`."""
    return cdiv(value, unit) * unit


def programs_of_blocks(blocks: int, resident: int, most: int) -> int:
    """Counts programs, as many for each block and at most `most`, so that few of them are idle at the end.

    They are at most `_MAX_WAVES` times as many as are resident, unless there are more blocks.
    """

    def idle(of_block: int) -> float:
        programs = of_block * blocks
        return 1 - programs / round_up(programs, resident)

    waves = range(1, _MAX_WAVES + 1)
    numbers = [max(1, min(most, number * resident // blocks)) for number in waves]
    return blocks * next((n for n in numbers if idle(n) <= _MAX_IDLE), min(numbers, key=idle))


def count_programs(problem: Problem, tiles: int, resident: int) -> int:
    """Counts the programs that loop over the tiles, of which so many are resident."""
    if problem.per_block:
        return programs_of_blocks(problem.blocks, resident, tiles // problem.blocks)
    return min(tiles, resident)


def smallest_limit(limits: list[tuple[int, str]]) -> tuple[int, str]:
    """Finds the smallest of the limits on resident programs, at least one of which is known, and joins their texts."""
    return min((programs for programs, _ in limits), default=1), f"min({', '.join(text for _, text in limits)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProblem(Problem):
    """A problem with the GPU that it is planned for and the probe that compiles its kernel."""

    device: DeviceProperties
    probe: Probe

    @property
    def peel(self) -> bool:
        """Whether rows are peeled: they are if they are unaligned and have enough vectors, unless rows are summed."""
        wide = self.cols >= MIN_PEELED_VECTORS * self.vector
        return self.layout == "row" and not self.aligned and wide and not (self.column_writes or self.whole_rows)

    @property
    def tile_cols(self) -> int:
        """Columns of a tile for a whole row. The tile of a peeled row holds its aligned vectors only."""
        return next_power_of_2(self.cols // self.vector * self.vector if self.peel else self.cols)

    @property
    def registers_per_element(self) -> int:
        """32-bit registers that a thread needs for an element of all tensors that it holds, a power of two."""
        return next_power_of_2(len(self.reads) + len(self.column_writes)) * self.accumulator // 4

    def exp2_bias(self, bias: float) -> float | None:
        """Chooses the field `exp2_bias` of a configuration for a GPU whose exp2 has this mean error.

        The error is visible in float32 elements only: in a sum, it is smaller than the sum's rounding. float64 needs
        the device's exp.
        """
        return None if self.accumulator == 8 else bias if self.writes[:1] == ("float32",) else 0.0

    def bytes_per_tile(self, config: KernelConfig) -> int:
        """Counts the bytes that a program reads for one tile. Padding columns are not read."""
        return config.rows * min(config.row_cols, self.cols) * self.bytes_read


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled configuration with its resources and its occupancy."""

    problem: DeviceProblem
    config: KernelConfig
    resources: Resources
    occupancy: int
    """Programs that one core can hold at the same time."""
    formula: str
    """The calculation of `occupancy`, as text."""

    @property
    def resident(self) -> int:
        """Programs that the whole GPU can hold at the same time."""
        return self.occupancy * self.problem.device.cores

    @property
    def runs(self) -> bool:
        """Whether a program fits on a core and all programs that wait for each other are resident.

        If programs exchange statistics, these are the programs of a row, or all programs if they do not loop.
        """
        exchanged = self.config.programs_per_row if self.problem.statistics else 1
        groups = 1 if self.config.persistent or exchanged == 1 else self.problem.tiles(self.config.rows)
        return self.resident >= exchanged * groups

    @property
    def few_spills(self) -> bool:
        """Whether so few bytes are spilled that no further configuration is tried."""
        return not self.resources.spills

    def launch_plan(self, programs: int | None, tiles: int, explanation: str) -> LaunchPlan:
        """Makes the plan with at most so many programs, or with one per tile if None.

        The reason has the occupancy, the tiles and the explanation.
        """
        config, problem, device, spills = self.config, self.problem, self.problem.device, self.resources.spills
        spilled = f"; {spills} bytes per thread are spilled" if spills else ""
        columns = f"{config.cols} + {config.rest_cols}" if config.rest_cols else config.cols
        reason = (
            f"occupancy {self.occupancy} = {self.formula}; {device.cores} {device.core_name}s x {self.occupancy} = "
            f"{self.resident} resident programs; {problem.rows} rows in {tiles} tiles of "
            f"{config.rows} x {columns}: {explanation}{spilled}"
        )
        return LaunchPlan(config, programs, reason, self.occupancy, self.resources)

    def one_program_per_tile(self, tiles: int) -> tuple[None, str]:
        """Gives the `programs` of a plan whose programs do not loop, and the explanation for its `reason`."""
        return None, f"one program per tile, {tiles / self.resident:.1f} times as many as are resident"
