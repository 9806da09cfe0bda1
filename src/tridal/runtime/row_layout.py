"""Row layouts: a tensor as blocks of rows, computed from its shape and strides. Arithmetic only; needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tridal.devices.types import Layout

FEW_ROWS = 8
"""Fewer inner rows than this are too few for a tile. 8 rows of the narrowest dtype fill half of a 32-byte access."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """A tensor as `outer` blocks of `inner` rows of `cols` elements, and the strides of these three in elements.

    The first tensor that is read may have any strides. By default, all other tensors are contiguous in their own shape.
    """

    outer: int
    inner: int
    cols: int
    in_strides: tuple[int, int, int]
    """Strides of the first tensor that is read: from block to block, from row to row, from column to column."""
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

    `out_strides` are the strides of the other tensors with a number per element. By default, they are contiguous.

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
