"""From shapes and strides to what a kernel sees: blocks of rows with a stride each. Arithmetic alone, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tridal.devices.types import Layout

FEW_ROWS = 8
"""Neighbouring rows that are too few for a tile: of the narrowest dtype, half of a 32-byte access to memory."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """`outer` blocks of `inner` rows of `cols` elements, and the strides of these three in elements.

    The first tensor read (the input, or the gradient in a backward) may lie anyhow; what is written, and the saved
    output that a backward reads, is contiguous in the tensor's own shape.
    """

    outer: int
    inner: int
    cols: int
    in_strides: tuple[int, int, int]
    out_strides: tuple[int, int, int]

    @property
    def layout(self) -> Layout:
        """Which index moves by one element in memory, in what is read and in what is written alike."""
        for axis in (1, 2) if self.cols == 1 else (2, 1):
            if self.in_strides[axis] == 1 == self.out_strides[axis]:
                return "row" if axis == 2 else "inner"
        return "strided"

    def extent(self, rows: int, cols: int) -> int:
        """Largest offset in elements from the corner of a tile of rows x cols to an element of it."""
        return max((rows - 1) * s[1] + (cols - 1) * s[2] for s in (self.in_strides, self.out_strides))


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous tensor without empty dimensions."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def merged(
    shape: Sequence[int], *strides: Sequence[int], without: int, apart: int | None = None
) -> list[tuple[int, ...]]:
    """The dimensions but `without` as few (size, stride, ...), outermost first.

    Neighbours become one where all strides allow it, and sizes of one are left out. `apart` stays, and begins anew.
    """
    levels: list[tuple[int, ...]] = []
    for axis, (size, *steps) in enumerate(zip(shape, *strides, strict=True)):
        if axis == without or (size == 1 and axis != apart):
            continue
        if levels and axis != apart and levels[-1][1:] == tuple(step * size for step in steps):
            levels[-1] = (levels[-1][0] * size, *steps)
        else:
            levels.append((size, *steps))
    return levels


def geometry(shape: Sequence[int], strides: Sequence[int], dim: int, few_rows: int = FEW_ROWS) -> Geometry | None:
    """How a kernel walks a tensor of this shape and these strides, along `dim` (0 <= dim < rank).

    Fewer neighbouring rows than `few_rows` are taken for blocks, if there are more blocks than that for rows.

    None if the dimensions other than `dim` need more than two strides: then no kernel reads the tensor as it lies.
    The shape holds no zero.
    """
    out_strides = contiguous_strides(shape)
    levels = merged(shape, strides, out_strides, without=dim)
    if len(levels) > 2:
        return None
    outer, inner = [(1, 0, 0)] * (2 - len(levels)) + levels
    if inner[0] < min(few_rows, outer[0]):
        outer, inner = inner, outer  # a tile takes its rows from `inner`: better many rows apart than a few together
    return Geometry(
        outer[0], inner[0], shape[dim], (outer[1], inner[1], strides[dim]), (outer[2], inner[2], out_strides[dim])
    )
