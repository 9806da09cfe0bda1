"""What is measured: the tutorials' grid, and the classes of shapes that a softmax has to be fast at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tridal.devices.types import ITEMSIZE

Direction: TypeAlias = Literal["forward", "backward"]

_MI = 1 << 20


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement's question."""

    group: str
    """Name of the class, or "grid"."""
    op: str
    direction: Direction
    dtype: str
    shape: tuple[int, ...]
    dim: int = -1
    slice: bool = False
    """Whether the input is a slice of a wider tensor, and starts at no multiple of 16 bytes."""

    @property
    def cols(self) -> int:
        """Elements of a row."""
        return self.shape[self.dim]

    @property
    def rows(self) -> int:
        """Rows in all."""
        return math.prod(self.shape) // self.cols

    @property
    def bytes(self) -> int:
        """Useful traffic: each element is read and written once; a gradient is two reads and a write."""
        return (3 if self.direction == "backward" else 2) * self.copied // 2

    @property
    def copied(self) -> int:
        """Traffic of `y.copy_(x)` on this shape."""
        return 2 * math.prod(self.shape) * ITEMSIZE[self.dtype]

    @property
    def label(self) -> str:
        """The shape as people write it, with what is odd about it."""
        shape = "x".join(map(str, self.shape))
        along = "" if self.dim in (-1, len(self.shape) - 1) else f" dim {self.dim}"
        return shape + along + (" slice" if self.slice else "")


@dataclass(frozen=True, slots=True)
class Class:
    """Shapes that are slow for one and the same reason, and the share of `copy_`'s rate that is aimed at."""

    name: str
    title: str
    shapes: tuple[tuple[int, ...], ...]
    forward: float | None
    backward: float | None
    dim: int = -1
    slices: tuple[tuple[int, ...], ...] = ()
    beats_peers: bool = False
    """Whether the aim is, besides, to be no slower than any peer."""

    def aim(self, direction: Direction) -> float | None:
        """The share of `copy_`'s rate aimed at, if any."""
        return self.forward if direction == "forward" else self.backward

    def points(self, op: str, direction: Direction, dtype: str, shrink: int = 1) -> list[Point]:
        """A point for each shape, with `shrink` times fewer rows."""
        found = []
        for shape in (*self.shapes, *self.slices):
            axis = 0 if self.dim else -1  # one that is not reduced
            sizes = list(shape)
            sizes[axis] = max(1, sizes[axis] // shrink)
            found.append(Point(self.name, op, direction, dtype, tuple(sizes), self.dim, shape in self.slices))
        return found


def _of(elements: int, *widths: int) -> tuple[tuple[int, ...], ...]:
    return tuple((elements // width, width) for width in widths)


CLASSES = (
    Class(
        "rows", "rows that fit on chip, 64 Mi elements",
        _of(64 * _MI, 32, 64, 128, 256, 512, 1024, 1152, 2048, 4096, 8192, 12_672, 16_384, 32_768),
        forward=0.97, backward=1.0,
    ),
    Class(
        "wide", "wide rows, 256 Mi elements",
        _of(256 * _MI, 65_536, 131_072, 262_144, 524_288, 1_048_576),
        forward=0.95, backward=1.0,
    ),
    Class(
        "odd", "odd widths and slices, 128 Mi elements",
        _of(128 * _MI, 100, 257, 781, 1001, 10_007, 50_257, 151_935),
        forward=0.92, backward=0.90, slices=_of(128 * _MI, 1024, 4096),
    ),
    Class(
        "few", "few wide rows",
        ((1, 32_768), (1, 131_072), (1, 262_144), (8, 32_768), (8, 128_256),
         (32, 128_256), (128, 128_256), (512, 32_768)),
        forward=0.80, backward=0.85, beats_peers=True,
    ),
    Class(
        "small", "small tensors", tuple((4096, width) for width in (256, 512, 781, 1024, 1536, 2048)),
        forward=None, backward=1.0, beats_peers=True,
    ),
    Class(
        "inner", "over the middle dimension", ((64, 4096, 256), (256, 256, 1024), (32, 1000, 1001)),
        forward=0.85, backward=0.85, dim=1,
    ),
    Class(
        "outer", "over the first dimension", ((512, 512, 512), (4096, 16_384), (50_257, 512)),
        forward=0.85, backward=0.85, dim=0,
    ),
)  # fmt: skip
"""The suite. Shapes and aims live here alone."""

GRID_ROWS, GRID_COLS = 4096, range(256, 12_672 + 1, 128)
"""The tutorials' grid."""
HOST_ROWS, HOST_COLS = 256, (256, 781, 1024)
"""What is measured of it on a CPU."""
HOST_SHRINK = 4096
"""How much smaller the suite is on a CPU."""


def grid(
    rows: int, cols: Iterable[int], op: str, directions: Sequence[Direction], dtypes: Sequence[str]
) -> list[Point]:
    """rows x N for every N, in every dtype and direction."""
    widths = list(cols)
    return [Point("grid", op, way, dtype, (rows, n)) for dtype in dtypes for way in directions for n in widths]


def suite(
    classes: Sequence[Class], op: str, directions: Sequence[Direction], dtypes: Sequence[str], shrink: int = 1
) -> list[Point]:
    """Every shape of these classes, in every dtype and direction."""
    return [
        point
        for dtype in dtypes
        for way in directions
        for group in classes
        for point in group.points(op, way, dtype, shrink)
    ]
