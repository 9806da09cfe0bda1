"""Row layouts: a tensor as blocks of rows, computed from its shape and strides. Arithmetic only; needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tridal.devices.types import Layout

FEW_ROWS = 8
"""Fewer inner rows than this are too few for a tile. 8 rows of the narrowest dtype fill half of a 32-byte access."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """A tensor as `outer` blocks of `inner` rows of `cols` elements, and the strides of these three in elements.

    Tensors with a number per element have one of two groups of strides. By default, the first tensor that is read has
    the first group, and all others are contiguous in their own shape.
    """

    outer: int
    inner: int
    cols: int
    in_strides: tuple[int, int, int]
    """Strides of the first tensor that is read, and of those of `RowKernel.strided_as_first`: from block to block, from
    row to row, from column to column."""
    out_strides: tuple[int, int, int]
    """Strides of the other tensors with a number per element, in the same order."""
    row_strides: tuple[int, int] = (0, 1)
    """Strides of contiguous tensors with a number per row: from block to block, from row to row."""

    def interleaved(self, blocks: int) -> RowLayout:
        """Returns the layout of one block of rows as `blocks` blocks: row i is row i // blocks of block i % blocks.

        If `blocks` is the number of elements of a vector, all rows of a block have the same misalignment. The first
        blocks may have one row more than the others; `inner` is the larger number.
        """
        assert self.outer == 1
        first, second = ((s[1], s[1] * blocks, s[2]) for s in (self.in_strides, self.out_strides))
        row = self.row_strides[1]
        return RowLayout(blocks, -(-self.inner // blocks), self.cols, first, second, (row, row * blocks))

    @property
    def layout(self) -> Layout:
        """The layout that all tensors have (see `Problem.layout`), or "strided" if their layouts differ."""
        for axis in (1, 2) if self.cols == 1 else (2, 1):
            if self.in_strides[axis] == 1 == self.out_strides[axis]:
                return "row" if axis == 2 else "inner"
        return "strided"

    @property
    def strides(self) -> tuple[int, ...]:
        """`in_strides` and `out_strides`."""
        return (*self.in_strides, *self.out_strides)

    def max_offset(self, rows: int, cols: int) -> int:
        """Returns the largest offset, in elements, from the first element of a rows x cols tile."""
        return max((rows - 1) * s[1] + (cols - 1) * s[2] for s in (self.in_strides, self.out_strides))


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides, in elements, of a contiguous tensor. No size may be zero."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class StrideGroups(NamedTuple):
    """The strides of the tensors of a call with a number per element, in at most two groups."""

    others: tuple[int, ...]
    """The strides of the tensors that do not have those of the first one."""
    as_first: tuple[bool, ...]
    """For each tensor after the first one: whether it has the first one's strides, and these differ from `others`."""
    copied: tuple[bool, ...]
    """For each tensor after the first one: whether it has other strides, so that a contiguous copy of it is read."""


def group_strides(
    shape: Sequence[int],
    first: Sequence[int],
    results: Sequence[Sequence[int] | None],
    inputs: Sequence[Sequence[int] | None],
) -> StrideGroups | None:
    """Returns the groups of the strides of a call's tensors, results before inputs.

    `first` are the strides of the first tensor that is read. None stands for a new contiguous tensor, or for an input
    of which a copy is read. So is an input whose contiguous dim is not that of the first one: a kernel would read each
    element in an access of its own. Returns None if the results and the copies need more than two groups.
    """
    contiguous = contiguous_strides(shape)

    def of(strides: Sequence[int] | None) -> tuple[int, ...]:
        given = contiguous if strides is None else strides
        return tuple(0 if size == 1 else stride for size, stride in zip(shape, given, strict=True))

    first, tensors = of(first), (*results, *inputs)
    fixed = {of(strides): None for strides in (*results, *(s for s in inputs if s is None))}
    readable = [of(s) for s in inputs if any(a == b == 1 for a, b in zip(of(s), first, strict=True))]
    different = [strides for strides in (*fixed, *readable) if strides != first]
    alike = all(of(strides) == first for strides in tensors)
    others = different[0] if different else first if alike and tensors else of(None)
    if of(None) not in (first, others) and not {*map(of, inputs)} <= {first, others}:
        others = of(None)  # the group of the copies
    if not {*fixed} <= {first, others}:
        return None
    copied = [of(strides) not in (first, others) for strides in tensors]
    if any(copied) and of(None) not in (first, others):
        return None
    read = [None if copy else strides for copy, strides in zip(copied, tensors, strict=True)]
    exact = next((s for s in read if s is not None and of(s) == others != of(None)), contiguous)
    return StrideGroups(tuple(exact), tuple(of(strides) != others for strides in read), tuple(copied))


def coalesce_dims(
    shape: Sequence[int], *strides: Sequence[int], without: int, separate: int | None = None
) -> list[tuple[int, ...]]:
    """Merges neighbouring dims if each tensor needs only one stride for the merged dim. `strides` has one per tensor.

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
    out_strides: Sequence[int] | None = None,
) -> RowLayout | None:
    """Returns the row layout of a tensor without empty dims, whose rows run along a dim (0 <= dim < rank).

    `out_strides` are the second group of strides of tensors with a number per element. By default, they are contiguous.

    Returns None if the other dims need more than two strides, which kernels do not support. Exchanges `outer` and
    `inner` if `inner` is less than `few_rows` and less than `outer`. `few_rows` = 0 keeps the order of the rows.
    """
    out_strides = contiguous_strides(shape) if out_strides is None else out_strides
    row_strides = contiguous_strides([*shape[:dim], 1, *shape[dim + 1 :]])
    levels = coalesce_dims(shape, strides, out_strides, row_strides, without=dim)
    if len(levels) > 2:
        return None
    outer, inner = [(1, 0, 0, 0)] * (2 - len(levels)) + levels
    if inner[0] < min(few_rows, outer[0]):
        outer, inner = inner, outer  # `inner` has too few rows to fill a tile
    read, others = ((outer[i], inner[i], of[dim]) for i, of in ((1, strides), (2, out_strides)))
    return RowLayout(outer[0], inner[0], shape[dim], read, others, (outer[3], inner[3]))
