"""What is compiled and executed: every op, dtype and layout, at the widths where the NPU's plan changes its mind."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tridal.devices.types import DeviceProperties, LaunchPlan
from tridal.runtime import launch
from tridal.runtime import specialization as variants
from tridal.runtime.row_layout import geometry
from tridal_npu import backend

OPS = ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward")
LAYOUTS = ("row", "inner", "strided")
DTYPES = (
    # dtype and out_dtype of a forward; a backward reads the latter and writes the former
    ("float32", "float32"),
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
    ("float16", "float32"),
)
OPTIONS = {"num_programs": 32}
WIDEST = 1 << 17
MOST_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """One launch: `rows` rows of `cols` elements, lying as `form` says."""

    op: str
    dtypes: tuple[str, str]
    layout: str
    cols: int
    rows: int
    form: str
    aligned: bool = True

    def __str__(self) -> str:
        dtypes = "-".join(dict.fromkeys(self.dtypes))
        alignment = "" if self.aligned else " unaligned"
        return f"{self.op} {dtypes} {self.layout} {self.rows}x{self.cols} {self.form}{alignment}"

    @property
    def backward(self) -> bool:
        return self.op.endswith("_backward")

    @property
    def read_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtypes[self.backward])

    @property
    def written_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtypes[not self.backward])

    @property
    def shape_strides_dim(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """What is read, as torch sees it. Every form has gaps in memory but the first of its layout."""
        rows, cols, third = self.rows, self.cols, -(-self.rows // 3)
        return {
            "contiguous": ((rows, cols), (cols, 1), 1),
            "padded": ((rows, cols), (cols + 13, 1), 1),
            "blocks": ((3, third, cols), ((third + 2) * (cols + 16), cols + 16, 1), 2),
            "columns": ((cols, rows), (rows, 1), 0),
            "padded columns": ((cols, rows), (rows + 13, 1), 0),
            "blocks of columns": ((3, cols, third), (cols * (third + 16) + 32, third + 16, 1), 1),
            "every other": ((rows, cols), (2 * cols + 1, 2), 1),
            "transposed": ((rows, cols), (1, rows), 1),
            "expanded": ((rows, cols), (1, 0), 1),
        }[self.form]

    def call(self) -> variants.Call:
        """The call that the op makes of such tensors."""
        shape, strides, dim = self.shape_strides_dim
        where = geometry(shape, strides, dim)
        assert where is not None
        assert where.layout == self.layout, f"{self} is meant to be of another layout than {where.layout}"
        names = [str(dtype).removeprefix("torch.") for dtype in (self.written_dtype, self.read_dtype)]
        dtypes = (*names, names[1]) if self.backward else tuple(names)
        off = 0 if self.aligned else self.read_dtype.itemsize
        return variants.Call.of(self.op, where, dtypes, (0, off, off)[: len(dtypes)])

    def plan(self) -> LaunchPlan:
        """The backend's own plan."""
        return launch.plan(self.call(), backend, properties(), OPTIONS)

    def variant(self) -> variants.Variant:
        """What is compiled for it."""
        return self.call().variant(self.plan().tile)


@functools.cache
def properties() -> DeviceProperties:
    return backend.properties(0)


FORMS = {
    "row": ("contiguous", "padded", "blocks"),
    "inner": ("columns", "padded columns", "blocks of columns"),
    "strided": ("every other", "transposed", "expanded"),
}


def group(op: str, dtypes: tuple[str, str], layout: str) -> list[Case]:
    """The matrix of one op, pair of dtypes and layout, in an order that never changes."""
    return list(dict.fromkeys(_cases(op, dtypes, layout)))


def _cases(op: str, dtypes: tuple[str, str], layout: str) -> Iterator[Case]:
    thorough = dtypes == ("float32", "float32")  # the plans of other dtypes differ little: every other change of those
    for number, cols in enumerate(widths(op, dtypes, layout)):
        if not thorough and number % 4 in (1, 2):
            continue
        largest = Case(op, dtypes, layout, cols, 1 << 20, FORMS[layout][0]).plan().tile.rows
        many = min(
            32 * largest + 7, max(3, MOST_ELEMENTS // cols)
        )  # the largest tile for each of 32 programs, and more
        for rows in (3, many) if thorough else ((3, many)[number // 2 % 2],):
            forms = FORMS[layout] if rows >= 24 else FORMS[layout][:2]  # fewer would be no blocks of neighbouring rows
            form = forms[(number + rows) % len(forms)]
            yield Case(op, dtypes, layout, cols, rows, form, aligned=(number + rows) % 4 != 0)


@functools.cache
def widths(op: str, dtypes: tuple[str, str], layout: str) -> list[int]:
    """Widths of a row on both sides of every change of the plan's tile, and the widest."""

    def tile(cols: int) -> object:
        return Case(op, dtypes, layout, cols, 1 << 20, FORMS[layout][0]).plan().tile

    powers = [1 << k for k in range(1, WIDEST.bit_length())]
    found = [width for power in powers if tile(power) != tile(power + 1) for width in (power, power + 1)]
    return sorted({1 if layout == "inner" else 2, *found, WIDEST - 3})
