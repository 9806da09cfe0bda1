"""The workloads that `tridal bench` measures: a grid of widths, or a suite of shape classes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

from tridal.devices.types import ITEMSIZE

DIRECTIONS = ("forward", "backward")
Shapes: TypeAlias = tuple[tuple[int, ...], ...]

_MI = 1 << 20


@dataclass(frozen=True, slots=True)
class Workload:
    """One op, direction, dtype and shape to measure. The op normalizes along `dim`."""

    group: str  # name of the shape class, or "grid"
    op: str
    direction: str  # "forward" or "backward"
    dtype: str
    shape: tuple[int, ...]
    dim: int = -1
    is_slice: bool = False  # whether the input is an unaligned slice of a wider tensor

    @property
    def cols(self) -> int:
        """Elements per row."""
        return self.shape[self.dim]

    @property
    def tensor_bytes(self) -> int:
        """Size of the input. `y.copy_(x)` reads and writes as many bytes."""
        return math.prod(self.shape) * ITEMSIZE[self.dtype]

    @property
    def label(self) -> str:
        """The shape as text, for example "4x8", "4x8x2 dim 1" or "4x8 slice"."""
        dim = "" if self.dim in (-1, len(self.shape) - 1) else f" dim {self.dim}"
        return "x".join(map(str, self.shape)) + dim + (" slice" if self.is_slice else "")


@dataclass(frozen=True, slots=True)
class ShapeClass:
    """Shapes with the same bottleneck. The op normalizes along `dim`."""

    name: str
    title: str
    shapes: Shapes
    dim: int = -1
    slices: Shapes = ()  # shapes whose input is an unaligned slice of a wider tensor
    beats_peers: bool = False  # whether tridal also aims to be at least as fast as every other provider


def grid(rows: int, cols: Iterable[int]) -> ShapeClass:
    """Makes a class of the shapes with this number of rows and each number of columns."""
    return ShapeClass("grid", "", tuple((rows, width) for width in cols))


def _matrices(elements: int, *widths: int) -> Shapes:
    """One (rows, width) shape per width, each with about `elements` elements."""
    return tuple((elements // width, width) for width in widths)


_SUITE = (
    ShapeClass(
        "rows", "rows that fit on chip",
        _matrices(64 * _MI, 32, 64, 128, 256, 512, 1024, 1152, 2048, 4096, 8192, 12_672, 16_384, 32_768),
    ),
    ShapeClass("wide", "wide rows", _matrices(256 * _MI, 65_536, 131_072, 262_144, 524_288, 1_048_576)),
    ShapeClass(
        "odd", "odd widths and slices", _matrices(128 * _MI, 100, 257, 781, 1001, 10_007, 50_257, 151_935),
        slices=_matrices(128 * _MI, 1024, 4096),
    ),
    ShapeClass(
        "few", "few wide rows",
        ((1, 32_768), (1, 131_072), (1, 262_144), (8, 32_768), (8, 128_256),
         (32, 128_256), (128, 128_256), (512, 32_768)),
        beats_peers=True,
    ),
    ShapeClass(
        "small", "small tensors", tuple((4096, width) for width in (256, 512, 781, 1024, 1536, 2048)), beats_peers=True
    ),
    ShapeClass("inner", "over the middle dimension", ((64, 4096, 256), (256, 256, 1024), (32, 1000, 1001)), dim=1),
    ShapeClass("outer", "over the first dimension", ((512, 512, 512), (4096, 16_384), (50_257, 512)), dim=0),
)  # fmt: skip
_HIDDEN = (
    ShapeClass("hidden", "hidden sizes of models", ((524_288, 1024), (131_072, 4096), (65_536, 8192))),
    ShapeClass(
        "hidden_between",
        "hidden sizes between powers of two",
        ((131_072, 1152), (65_536, 2304), (32_768, 4608), (32_768, 5120), (16_384, 7168)),
    ),
    ShapeClass("hidden_wide", "wide hidden sizes", ((4096, 16_384), (16_384, 32_768))),
    ShapeClass("hidden_65536", "65,536 columns", ((4096, 65_536),)),
    ShapeClass("hidden_262144", "262,144 columns", ((1024, 262_144),)),
    ShapeClass("hidden_odd", "odd hidden sizes", ((131_072, 4097), (65_536, 781))),
    ShapeClass("heads", "normalized heads", ((1_048_576, 128),)),
)
_BATCHES = ShapeClass("batches", "batches of a diffusion model", ((32, 4096, 1152), (8, 1024, 3072)))
_EVEN = tuple(shape_class for shape_class in _HIDDEN if shape_class.name != "hidden_odd")
_VOCABULARIES = (
    ShapeClass(
        "vocabulary", "vocabularies",
        ((512, 262_144), (2048, 151_936), (4096, 128_256), (8192, 32_000), (8192, 128_256)),
    ),
    ShapeClass("vocabulary_odd", "an odd vocabulary", ((4096, 50_257),)),
    ShapeClass("few_classes", "few classes", ((32_768, 1024),)),
)  # fmt: skip
_EXPERTS = (
    ShapeClass("experts", "experts of mixtures", ((65_536, 64), (65_536, 128), (65_536, 256), (65_536, 512))),
    ShapeClass("experts_odd", "odd numbers of experts", ((65_536, 60), (65_536, 160), (65_536, 384))),
    ShapeClass("experts_few_tokens", "experts of few tokens", ((64, 128), (1024, 128), (1024, 256))),
)
_QUERY = (
    ShapeClass(
        "query", "queries and keys of models", ((8192, 32, 128), (8192, 8, 128), (8192, 64, 64), (8192, 8, 256))
    ),
)
_SUITES = {
    "rows": _SUITE, "hidden": _HIDDEN, "halves": _EVEN, "modulated": (*_HIDDEN, _BATCHES),
    "vocabularies": _VOCABULARIES, "experts": _EXPERTS, "query": _QUERY,
}  # fmt: skip
SUITES: Mapping[str, tuple[str, ...]] = {
    name: tuple(shape_class.name for shape_class in suite) for name, suite in _SUITES.items()
}
"""The names of the shape classes of each suite."""
SHAPE_CLASSES: Mapping[str, ShapeClass] = {
    shape_class.name: shape_class for shape_class in (*_SUITE, *_HIDDEN, _BATCHES, *_VOCABULARIES, *_EXPERTS, *_QUERY)
}
"""All shape classes, by name. The shapes of the suites are defined only here."""

GRID, CPU_GRID = (4096, range(256, 12_672 + 1, 128)), (256, (256, 781, 1024))
"""Rows and columns of the default grid on an accelerator (the shapes of Triton's softmax tutorial) and on a CPU."""
CPU_SHRINK = 4096
"""Divisor of the suite's row counts on a CPU."""


def make_workloads(
    classes: Sequence[ShapeClass], op: str, directions: Sequence[str], dtypes: Sequence[str], shrink: int = 1
) -> list[Workload]:
    """Makes one workload per dtype, direction and shape. `shrink` divides the number of rows."""
    workloads = []
    for dtype, direction, group in product(dtypes, directions, classes):
        for shape in (*group.shapes, *group.slices):
            sizes, left = list(shape), shrink
            # The dims before the last one, or else any dim except the normalized one.
            for axis in range(len(shape) - 1) if group.dim == -1 else [0 if group.dim else -1]:
                sizes[axis], left = max(1, sizes[axis] // left), max(1, left // sizes[axis])
            is_slice = shape in group.slices
            workloads.append(Workload(group.name, op, direction, dtype, tuple(sizes), group.dim, is_slice))
    return workloads
