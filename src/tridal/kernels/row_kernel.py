"""The declaration of a kernel over rows: its tensors, its statistics and its Triton functions."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

Reduction: TypeAlias = Literal["max", "sum", "accurate_sum", "top"]

MAX_LIVE_TILES = 16
TENSORS = {
    "writes": "result", "row_writes": "per_row", "top_writes": "per_top", "column_writes": "sums", "reads": "ptr",
    "added": "ptr", "row_reads": "ptr", "row_index": "ptr", "top_reads": "ptr", "top_index": "ptr",
    "column_reads": "ptr",
}  # fmt: skip
"""The fields of `RowKernel` that name tensors, in the order of a kernel's arguments, and the ends of their names."""
OUTPUTS = tuple(TENSORS)[:4]
"""Those of them that name outputs."""


@dataclass(frozen=True, slots=True)
class Statistic:
    """A number per row: the reduction of a term of each element.

    Attributes:
        name: functions that run after the statistic get it by this name.
        reduce: "max", "sum", or "accurate_sum", a sum that rounds less often. "max" may ignore NaN, as `tl.max` does,
            so another number has to be NaN for a row with NaN, for example a sum. "top" chooses the TOP largest terms
            of a row in descending order, where TOP is a constant of the kernel. Its result is no number per row: terms
            of later statistics, and `RowKernel.top_writes`, get the chosen elements instead of all elements of the row.
            Of equal terms, the one in the lower column comes first. NaN is the largest term.
        term: name of the Triton function that computes the term, or of the tensor of `reads` that is the term.
        rebase: name of a Triton function. A later statistic needs it if its term uses the first statistic or `count`.
            The function gets the later statistic of a part of a row, and returns what it would be if its terms had used
            the first statistic and the count of the whole row. It may use the statistics between both of them. A part
            may be empty: its "max" is -inf, and its sums and its count are 0.
    """

    name: str
    reduce: Reduction
    term: str
    rebase: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RowKernel:
    """A kernel over rows: the tensors that it reads and writes, the statistics of a row, and its Triton functions.

    It is independent of tiles, programs and devices. `tridal.kernels.op_functions` lists the parameters of functions.
    Compared and hashed by identity.

    Attributes:
        name: name of the kernel. `tridal plan --op` takes it.
        module: module of the Triton functions. It is imported when the first kernel is compiled or interpreted.
        reads: names of the inputs with a number per element.
        statistics: the statistics of a row. Programs that compute a row together ("cooperative") exchange at most two.
        writes: for each output with a number per element: the name of its Triton function.
        added: name of an input with a number per element that is added to the first of `writes` before it is rounded,
            for example the gradient of another use of a tensor. No function gets it.
        row_reads: names of the inputs with a number per row, or with one number for all rows. They are contiguous.
        row_index: name of an input with a column index per row, in int64. It is contiguous. Functions that are called
            once per row also get `picked`: the element of the first tensor in that column, or NaN if there is no such
            column. They get ``picked_<name>``, too: the number that the first of `column_reads` has for that column, or
            zero.
        top_reads: names of the inputs with TOP numbers per row, one for each column in `top_index`. They are
            contiguous. Functions get a number per element: that of the element's column, or zero.
        top_index: name of an input with TOP column indices per row, in int64. It is contiguous. Functions get by this
            name the position of each element's column among them, or TOP.
        column_reads: names of the inputs with a number per column, for example a weight. They are contiguous.
        row_writes: for each output with a number per row: the name of its Triton function, or of the statistic that it
            is. The outputs are contiguous.
        top_writes: for each output with TOP numbers per row: the name of the Triton function of a chosen element. The
            outputs are contiguous.
        column_writes: for each output with a number per column: the name of the Triton function of its term. The output
            is the sum of the term over all rows, in the accumulator's dtype. Each group of programs that compute the
            same rows writes one row of partial sums, so the tensor has `LaunchPlan.groups` rows; it is contiguous.
        parameters: names of numbers that are the same for all elements. They are run-time arguments. A None is a
            constant.
        padding: the value of elements beyond the end of a row.
        neutral_padding: whether elements of `padding` leave the statistics unchanged. Also whether they leave the sums
            of `column_writes` unchanged in a row beyond the last one, whose `row_reads` are zero; terms of these sums
            may then use neither statistics nor `row_value`, and those that use `column_reads` are masked. If not, terms
            beyond the end are masked.
        scale_mask: whether the first tensor can be scaled and masked when it is loaded.
        live_tiles: tiles of the accumulator's dtype that are live at the same time, from 1 to 16, see
            `Problem.live_tiles`.
        row_value: name of the Triton function that computes a number per row from the statistics, before elements are
            computed. `writes` and `row_writes` get it by the function's name.
        constants: pairs of a name in upper case and a number, string or None. Functions may declare these names as
            compile-time constants, see `bind`.
        stride_groups: pairs of the pointer of a tensor with a number per element, and the group of its strides in the
            call's `RowLayout`: "in" or "third". The first tensor has "in", and others have "out". Set by the launch
            engine, as is `split`.
        split: whether the blocks of the `RowLayout` have two strides.
        per_block: names in `column_reads` and `column_writes` that have a number per column for each of the `outer`
            blocks of rows. Each program then computes tiles of one block. Set for a call, see `with_blocks`.
        for_all_rows: names in `row_reads` that have one number for all rows. Set for a call, see `with_numbers`.
        parts: 1 if each row is one part of a longer row, see `part_of_row`. If above 1, of how many parts the kernel
            reads the statistics, see `of_parts`.
    """

    name: str
    module: str
    reads: tuple[str, ...]
    statistics: tuple[Statistic, ...]
    writes: tuple[str, ...]
    added: str | None = None
    row_reads: tuple[str, ...] = ()
    row_index: str | None = None
    top_reads: tuple[str, ...] = ()
    top_index: str | None = None
    column_reads: tuple[str, ...] = ()
    row_writes: tuple[str, ...] = ()
    top_writes: tuple[str, ...] = ()
    column_writes: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    padding: float = 0.0
    neutral_padding: bool = False
    scale_mask: bool = False
    live_tiles: int = 3
    row_value: str | None = None
    constants: tuple[tuple[str, Any], ...] = ()
    stride_groups: tuple[tuple[str, str], ...] = ()
    split: bool = False
    per_block: tuple[str, ...] = ()
    for_all_rows: tuple[str, ...] = ()
    parts: int = 0

    def bind(self, **constants: Any) -> RowKernel:
        """Adds constants to the kernel. Each replaces the tensor or parameter of its name, or is a new one.

        `weight=None` is a kernel without the tensor `weight`. The names of other constants are in upper case. The value
        of a constant whose name ends in `_DTYPE` is the name of a dtype. The others are numbers, strings or None.
        Equal arguments give the same kernel.
        """
        bound: dict[str, Any] = {"constants": (*self.constants, *constants.items())}
        for field in ("reads", "row_reads", "top_reads", "column_reads", "parameters"):
            bound[field] = tuple(name for name in getattr(self, field) if name not in constants)
        for field in ("added", "row_index", "top_index"):
            bound[field] = None if getattr(self, field) in constants else getattr(self, field)
        return _changed(self, **bound)

    def with_blocks(self, *names: str) -> RowKernel:
        """Gives inputs and outputs with a number per element a number per column and block of rows instead.

        The functions stay the same: that of an output computes the term of a sum over the rows of a block. Equal
        arguments give the same kernel.
        """
        if not names:
            return self
        changed: dict[str, Any] = {"per_block": names}
        for field, columns in (("reads", "column_reads"), ("writes", "column_writes")):
            moved = tuple(name for name in getattr(self, field) if name in names)
            changed[field] = tuple(name for name in getattr(self, field) if name not in names)
            changed[columns] = (*getattr(self, columns), *moved)
        return _changed(self, **changed)

    def with_numbers(self, *names: str) -> RowKernel:
        """Gives inputs of `row_reads` one number for all rows. Equal arguments give the same kernel."""
        return _changed(self, for_all_rows=names) if names else self

    def writing(self, *names: str) -> RowKernel:
        """Removes the outputs that are not named. Equal arguments give the same kernel."""
        kept: dict[str, Any] = {field: tuple(n for n in getattr(self, field) if n in names) for field in OUTPUTS}
        return _changed(self, added=self.added if kept["writes"] else None, **kept)

    def part_of_row(self) -> RowKernel:
        """Writes the statistics only, those of one part of each row. Equal arguments give the same kernel."""
        changed: dict[str, Any] = dict.fromkeys(OUTPUTS, ()) | {"added": None, "row_value": None, "parts": 1}
        changed["row_writes"] = tuple(statistic.name for statistic in self.statistics)
        return _changed(self, name=f"{self.name}_part", **changed)

    def of_parts(self, parts: int) -> RowKernel:
        """Reads the statistics of all parts of a row and merges them. Equal arguments give the same kernel."""
        names = (f"{statistic.name}_of_{part}" for part in range(parts) for statistic in self.statistics)
        return _changed(self, row_reads=(*self.row_reads, *names), parts=parts)

    @property
    def computed(self) -> tuple[Statistic, ...]:
        """The statistics that the kernel computes from elements."""
        return () if self.parts > 1 else self.statistics

    def with_strides(self, groups: tuple[tuple[str, str], ...], split: bool = False) -> RowKernel:
        """Gives the kernel these `stride_groups`. Equal arguments give the same kernel."""
        return _changed(self, stride_groups=groups, split=split) if groups or split else self

    @property
    def passes(self) -> int:
        """Number of passes over a row, see `Problem.passes`."""
        written = bool(self.writes or self.column_writes)
        return bool(self.computed) + written + any(statistic.rebase is not None for statistic in self.computed)

    @property
    def top(self) -> int:
        """The number of elements of a row that are chosen, or 0."""
        return int(dict(self.constants).get("TOP", 0))

    @property
    def whole_rows(self) -> bool:
        """Whether each row needs a program that holds all of it, see `Problem.whole_rows`."""
        return self.top_index is not None or any(statistic.reduce == "top" for statistic in self.statistics)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in order."""
        return _joined(self.tensors[: len(OUTPUTS)])

    @property
    def tensors(self) -> tuple[tuple[str, ...], ...]:
        """The names of all tensors, by the fields in `TENSORS`."""
        return _tensors(self)

    def named(self, field: str) -> tuple[str, ...]:
        """Reads the names in a field: its tuple, its only name, or none."""
        names = getattr(self, field)
        return () if names is None else (names,) if isinstance(names, str) else names

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the tensors that the kernel reads, in order."""
        return _joined(self.tensors[len(OUTPUTS) :])

    @property
    def pointers(self) -> tuple[str, ...]:
        """The schedules' pointer argument for each tensor."""
        return tuple(f"{name}_{end}" for field, end in TENSORS.items() for name in self.named(field))

    @property
    def element_pointers(self) -> tuple[str, ...]:
        """Those of the tensors with a number per element."""
        return tuple(f"{n}_{TENSORS[field]}" for field in ("writes", "reads", "added") for n in self.named(field))

    @property
    def names(self) -> list[str]:
        """The names of inputs, parameters, statistics, the row value and constants."""
        names = [*self.reads, *self.row_reads, *self.top_reads, *self.column_reads, *self.parameters]
        names += [statistic.name for statistic in self.statistics]
        names += [n for field in ("row_value", "row_index", "top_index", "added") for n in self.named(field)]
        return names + [name for name, _ in self.constants]

    def fault(self) -> str | None:
        """Describes the first fault in the declaration, or returns None."""
        statistics = self.statistics
        if type(self.live_tiles) is not int or not 1 <= self.live_tiles <= MAX_LIVE_TILES:
            wanted = f"expected an integer from 1 to {MAX_LIVE_TILES}"
            return f"kernel {self.name!r}: live_tiles: {wanted}, found {self.live_tiles!r}"
        if not self.reads or not (self.writes or self.row_writes or self.top_writes):
            return f"kernel {self.name!r} needs a tensor to read, and one to write with a number per element or per row"
        if self.added is not None and not self.writes:
            return f"kernel {self.name!r} adds {self.added!r} to nothing: it writes no tensor with a number per element"
        if any(statistic.rebase is not None for statistic in statistics[:1]):
            return f"kernel {self.name!r}: the first statistic has no rebase, because its term uses no other statistic"
        if fault := self._top_fault():
            return f"kernel {self.name!r}: {fault}"
        for names in (self.names, *self.tensors[: len(OUTPUTS)]):
            if len(set(names)) < len(names):
                return f"kernel {self.name!r} uses one name for two things: {', '.join(names)}"
        unknown = [s.reduce for s in statistics if s.reduce not in get_args(Reduction)]
        if unknown:
            return f"kernel {self.name!r}: unknown reduction {unknown[0]!r} (known: {', '.join(get_args(Reduction))})"
        return None

    def _top_fault(self) -> str | None:
        """Returns a fault in what has TOP numbers per row, or None."""
        tops = [statistic.name for statistic in self.statistics if statistic.reduce == "top"]
        if len(tops) > 1:
            return f"expected one statistic that is a 'top', found {' and '.join(tops)}"
        if self.top_writes and not tops:
            return "top_writes are numbers of chosen elements: declare a statistic that is a 'top'"
        if self.top_reads and self.top_index is None:
            return "top_reads are numbers of some columns: declare top_index, the indices of the columns"
        if self.whole_rows and "TOP" not in dict(self.constants):
            return "expected the constant TOP, the number of elements that are chosen"
        if self.whole_rows and self.scale_mask:
            return "a kernel that chooses elements has no scale_mask"
        return None


@functools.lru_cache(maxsize=1024)
def _tensors(kernel: RowKernel) -> tuple[tuple[str, ...], ...]:
    return tuple(kernel.named(field) for field in TENSORS)


@functools.lru_cache(maxsize=1024)
def _joined(fields: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    return tuple(name for names in fields for name in names)


@functools.lru_cache(maxsize=1024)
def _changed(kernel: RowKernel, **fields: Any) -> RowKernel:
    return replace(kernel, **fields)
