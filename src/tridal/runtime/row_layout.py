"""Row layouts: a tensor as blocks of rows, computed from its shape and strides. Arithmetic only; needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tridal.devices.types import MAX_32_BIT_ELEMENTS, MAX_32_BIT_ROWS, Layout, round_rows, row_bucket

FEW_ROWS = 8
"""Fewer inner rows than this are too few for a tile. 8 rows of the narrowest dtype fill half of a 32-byte access."""


DENSE = 2
"""The largest stride of a row whose elements share accesses: those of a view of even elements."""
GROUPS = ("in", "out", "third")
"""The names of the groups of strides, of which a call has the first two or all."""
Strides = tuple[int, int, int]
"""Strides from block to block, from row to row and from column to column, in elements."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """A tensor as `outer` blocks of `inner` rows of `cols` elements, and the strides of these three in elements.

    Tensors with a number per element have one of three groups of strides, see `RowKernel.stride_groups`. By default,
    the first tensor that is read has the first group, and all others are contiguous in their own shape.
    """

    outer: int
    inner: int
    cols: int
    groups: tuple[Strides, ...]
    """The groups of strides, in the order of `GROUPS`: those of the first tensor that is read, those of most tensors,
    and a third group if there is one."""
    row_strides: tuple[int, int] = (0, 1)
    """Strides of contiguous tensors with a number per row: from block to block, from row to row."""
    minor_blocks: int | None = None
    """If blocks have two strides: the number of blocks from one multiple of the first stride to the next one."""
    jumps: tuple[int, ...] = ()
    """If so, for each group: what is added to the offset of a block for each multiple. Tensors with a number per row do
    not have such strides."""

    def merged(self, rows: int) -> RowLayout:
        """Takes `rows` neighboring rows as one row, if they are neighbors.

        The result has several rows, because a launch for one row serves no other number of rows. All its rows are
        aligned if the first one is and `rows` is a multiple of the elements of a vector. There are no tensors with a
        number per row.
        """
        contiguous = all(s[1:] == (self.cols, 1) for s in self.groups)
        if self.outer > 1 or self.inner <= rows or self.inner % rows or not contiguous:
            return self
        groups = tuple((s[0], s[1] * rows, s[2]) for s in self.groups)
        return RowLayout(1, self.inner // rows, self.cols * rows, groups)

    @property
    def layout(self) -> Layout:
        """The layout that all tensors have (see `Problem.layout`), or "strided" if their layouts differ."""
        for axis in (1, 2) if self.cols == 1 else (2, 1):
            if all(strides[axis] == 1 for strides in self.groups):
                return "row" if axis == 2 else "inner"
        return "strided"

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.outer * self.inner

    @property
    def row_range(self) -> tuple[int, int]:
        """The first and the last number of rows in the bucket of this layout, or only its own if strides depend on it.

        Strides depend on the number of rows if there are several blocks, and in the layout "inner".
        """
        if self.outer > 1 or self.layout == "inner":
            return self.rows, self.rows
        return row_bucket(self.inner, self.cols)

    @property
    def rounded(self) -> tuple[int, int]:
        """`outer` and `inner` for the problem that is planned, see `Problem`.

        They stay exact if only the rounded ones have more rows, or more elements, than 32 bits can number.
        """
        if self.outer == 1:
            return 1, self.row_range[1]
        outer, inner = round_rows(self.outer), self.inner if self.layout == "inner" else round_rows(self.inner)
        for size, limit in ((1, MAX_32_BIT_ROWS), (self.cols, MAX_32_BIT_ELEMENTS)):
            if self.rows * size <= limit < outer * inner * size:
                return self.outer, self.inner
        return outer, inner

    def max_offset(self, rows: int, cols: int) -> int:
        """The largest offset, in elements, from the first element of a rows x cols tile."""
        return max((rows - 1) * s[1] + (cols - 1) * s[2] for s in self.groups)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of a contiguous tensor. No size may be zero."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class StrideGroups(NamedTuple):
    """The strides of the tensors of a call with a number per element, in at most three groups."""

    others: tuple[tuple[int, ...], ...]
    """The strides of the second group, and those of the third one, if there is one."""
    of_tensors: tuple[int, ...]
    """For each tensor after the first one: the index of its group."""
    copied: tuple[bool, ...]
    """For each tensor after the first one: whether it has other strides, so that a contiguous copy of it is read."""


def group_strides(
    shape: Sequence[int],
    first: Sequence[int],
    results: Sequence[Sequence[int] | None],
    inputs: Sequence[Sequence[int] | None],
) -> StrideGroups | None:
    """Groups the strides of a call's tensors, results before inputs.

    `first` are the strides of the first tensor that is read. None stands for a new contiguous tensor, or for an input
    of which a copy is read. An input whose contiguous dim differs from that of the first one is also copied, because a
    kernel would read each element in its own access. If the first one has no contiguous dim, its dim with the stride
    `DENSE` counts.
    Returns None if the results and the copies need more groups.
    """
    contiguous = contiguous_strides(shape)

    def of(strides: Sequence[int] | None) -> tuple[int, ...]:
        given = contiguous if strides is None else strides
        return tuple(0 if size == 1 else stride for size, stride in zip(shape, given, strict=True))

    first, tensors = of(first), (*results, *inputs)
    fixed = [of(strides) for strides in (*results, *(s for s in inputs if s is None))]
    dense = 1 if 1 in first else DENSE
    readable = [of(s) for s in inputs if any(0 < a <= b == dense for a, b in zip(of(s), first, strict=True))]
    different = [s for s in dict.fromkeys((*fixed, *readable)) if s != first]
    most = len(GROUPS) - 1
    if of(None) not in (first, *different[:most]) and not {*map(of, tensors)} <= {first, *different[:most]}:
        different = [*dict.fromkeys((*(s for s in fixed if s != first), of(None), *different))]  # for the copies
    alike = all(of(strides) == first for strides in tensors)
    others = different[:most] or [first if alike and tensors else of(None)]
    if not {*fixed} <= {first, *others}:
        return None
    copied = [of(strides) not in (first, *others) for strides in tensors]
    if any(copied) and of(None) not in (first, *others):
        return None
    read = [None if copy else strides for copy, strides in zip(copied, tensors, strict=True)]
    exact = {of(s): tuple(s) for s in reversed(read) if s is not None} | {of(None): contiguous}
    found = tuple(1 + others.index(of(strides)) if of(strides) in others else 0 for strides in read)
    return StrideGroups(tuple(exact.get(s, s) for s in others), found, tuple(copied))


def coalesce_dims(
    shape: Sequence[int], *strides: Sequence[int], without: int, separate: int | None = None
) -> list[tuple[int, ...]]:
    """Merges neighboring dims if each tensor needs only one stride for the merged dim. `strides` has one per tensor.

    Dims of size one and the dim `without` are dropped. The dim `separate` is kept, and not merged with the one before.
    Returns (size, stride of each tensor, ...) of each merged dim, outermost first.
    """
    levels: list[tuple[int, ...]] = []
    for axis, (size, *steps) in enumerate(zip(shape, *strides, strict=True)):
        if axis == without or (size == 1 and axis != separate):
            continue
        if levels and axis != separate and levels[-1][1:] == tuple(step * size for step in steps):
            levels[-1] = (levels[-1][0] * size, *steps)
        else:
            levels.append((size, *steps))
    return levels


def row_layout(
    shape: Sequence[int],
    strides: Sequence[int],
    dim: int,
    few_rows: int = FEW_ROWS,
    others: Sequence[Sequence[int]] = (),
    splits: bool = False,
    separate: int | None = None,
) -> RowLayout | None:
    """Lays out a tensor without empty dims, whose rows run along a dim (0 <= dim < rank).

    `others` are the second and the third group of strides of tensors with a number per element. By default, the second
    one is contiguous.

    Returns None if the other dims need more than two strides. With `splits`, the dims have any order and need up to
    three strides, two of which are those of blocks; then there are no tensors with a number per row. Exchanges `outer`
    and `inner` if `inner` is less than `few_rows` and less than `outer`. `few_rows` = 0 keeps the order of the rows.
    The dims before `separate` are those of blocks.
    """
    groups = others or [contiguous_strides(shape)]
    row_strides = contiguous_strides([*shape[:dim], 1, *shape[dim + 1 :]])
    levels = coalesce_dims(shape, strides, *groups, row_strides, without=dim, separate=separate)
    if len(levels) > 2 and splits:
        return _split_layout(shape, (strides, *groups), dim, few_rows)
    if len(levels) > 2:
        return None
    outer, inner = [(1, *[0] * (len(groups) + 2))] * (2 - len(levels)) + levels
    if inner[0] < min(few_rows, outer[0]):
        outer, inner = inner, outer  # `inner` has too few rows to fill a tile
    found = tuple((outer[i], inner[i], of[dim]) for i, of in enumerate((strides, *groups), 1))
    return RowLayout(outer[0], inner[0], shape[dim], found, (outer[-1], inner[-1]))


def _split_layout(shape: Sequence[int], groups: Sequence[Sequence[int]], dim: int, few_rows: int) -> RowLayout | None:
    """Looks for a layout whose blocks have two strides, with a contiguous or a dense dim."""
    order = sorted(range(len(shape)), key=lambda axis: -groups[0][axis])  # neighbors in memory can be merged
    sizes, *ordered = ([of[axis] for axis in order] for of in (shape, *groups))
    levels = coalesce_dims(sizes, *ordered, without=order.index(dim))
    if len(levels) > 3:
        return None
    one = (1, *[0] * len(groups))
    *blocks, inner = levels
    if inner[0] < few_rows:
        inner = max(levels, key=lambda level: level[0])
        blocks = [level for level in levels if level is not inner]
    major, minor = [one] * (2 - len(blocks)) + blocks
    strides = tuple((minor[i], inner[i], of[dim]) for i, of in enumerate(groups, 1))
    jumps = tuple(major[i] - minor[0] * minor[i] for i in range(1, len(major)))
    split: dict[str, Any] = {"minor_blocks": minor[0], "jumps": jumps} if major[0] > 1 else {}
    found = RowLayout(major[0] * minor[0], inner[0], shape[dim], strides, **split)
    is_dense = all(0 < columns <= DENSE for _, _, columns in found.groups)
    return found if is_dense or found.layout != "strided" else None
