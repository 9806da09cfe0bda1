"""The declaration of a kernel over rows: the tensors it reads, its statistics and its Triton functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Reduction: TypeAlias = Literal["max", "sum", "accurate_sum"]

MAX_READS = 2
MAX_STATISTICS = 2
MAX_PARAMETERS = 2


@dataclass(frozen=True, slots=True)
class Statistic:
    """A number per row: the reduction of a term of each element."""

    name: str
    reduce: Reduction
    term: str
    """Name of the Triton function that computes the term."""
    rebase: str | None = None
    """For a second statistic whose term depends on the first one: the name of the Triton function that computes the
    statistic of a part of a row, relative to the first statistic of the whole row."""


@dataclass(frozen=True, slots=True)
class RowKernel:
    """A kernel that computes one output element from each element and the statistics of its row.

    It knows no tile, program or device. Functions take what they name: tensors of `reads`, statistics, parameters, and
    the names that `tridal.runtime.op_functions` documents.
    """

    name: str
    module: str
    """Module of the Triton functions. It is imported when the first kernel is compiled or interpreted."""
    reads: tuple[str, ...]
    """Names of the tensors that are read once per element. All but the first are contiguous."""
    statistics: tuple[Statistic, ...]
    finish: str
    """Name of the Triton function that computes the output element."""
    parameters: tuple[str, ...] = ()
    """Names of numbers that are the same for all elements. They are passed at run time; None is a constant."""
    padding: float = 0.0
    """The value of elements beyond the end of a row."""
    neutral_padding: bool = False
    """Whether every term of `padding` leaves its statistic unchanged. If not, terms beyond the end are masked."""
    scale_mask: bool = False
    """Whether the first tensor can be scaled and masked when it is loaded."""
    live_tiles: int = 3
    """Tiles of the accumulator's dtype that are live at the same time, see `Problem.live_tiles`."""
    row_value: str | None = None
    """Name of the Triton function that computes a number per row from the statistics, before elements are finished.
    `finish` gets it by the function's name."""

    @property
    def passes(self) -> int:
        """Passes over a row: one per statistic that depends on the one before, and one that writes the output."""
        return 2 + any(statistic.rebase is not None for statistic in self.statistics)

    def problem(self) -> str | None:
        """What is wrong with the declaration, in words; None if nothing is."""
        for what, given, limit in (
            ("tensors", self.reads, MAX_READS),
            ("statistics", self.statistics, MAX_STATISTICS),
            ("parameters", self.parameters, MAX_PARAMETERS),
        ):
            if len(given) > limit:
                return f"kernel {self.name!r} has {len(given)} {what}: at most {limit} are supported"
        if not self.reads or not self.statistics:
            return f"kernel {self.name!r} needs at least one tensor and one statistic"
        if self.statistics[0].rebase is not None:
            return f"kernel {self.name!r}: rebase is for the second statistic only"
        if self.statistics[-1].rebase is not None and self.statistics[-1].reduce == "max":
            return f"kernel {self.name!r}: a statistic with rebase has to be a sum"
        names = [*self.reads, *self.parameters, *(statistic.name for statistic in self.statistics)]
        names += [] if self.row_value is None else [self.row_value]
        if len(set(names)) < len(names):
            return f"kernel {self.name!r} uses one name for two things: {', '.join(names)}"
        unknown = [s.reduce for s in self.statistics if s.reduce not in ("max", "sum", "accurate_sum")]
        if unknown:
            return f"kernel {self.name!r}: unknown reduction {unknown[0]!r} (known: max, sum, accurate_sum)"
        return None
