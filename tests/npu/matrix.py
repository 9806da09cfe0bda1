"""The launches that are compiled and executed: each kernel, dtype and layout, where the NPU's plan changes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tridal import library
from tridal.devices.types import DeviceProperties, LaunchPlan
from tridal.ops import table
from tridal.ops.op import Op
from tridal.runtime import launch
from tridal.runtime.row_layout import FEW_ROWS, row_layout
from tridal.runtime.scale_mask import ScaleMask, locate_mask
from tridal.runtime.specialization import NO_SCALE_MASK, KernelCall, Specialization
from tridal_npu import backend

OPS = {kernel.name: op for op in table.one_tensor_ops().values() for kernel in op.kernels}
"""The ops of one tensor, by the names of their kernels. Third-party ops are included."""
KERNELS = tuple(OPS)
DTYPES = (
    # input and output of a forward kernel; a backward kernel reads the second dtype and writes the first
    ("float32", "float32"),
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
    ("float16", "float32"),
)
FORMS = {
    "row": ("contiguous", "padded", "blocks"),
    "inner": ("columns", "padded columns", "blocks of columns"),
    "strided": ("every other", "transposed", "expanded"),
}
"""Names of shapes and strides, by the layout that they have: see `Case.shape_strides_dim`."""
LAYOUTS = tuple(FORMS)
OPTIONS = {"num_programs": 32}
SCALE = 0.5
WIDEST_ROW = 1 << 17
MAX_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """One launch of a kernel on `rows` rows of `cols` elements."""

    kernel: str
    dtypes: tuple[str, str]
    """One of `DTYPES`."""
    layout: str
    cols: int
    rows: int
    form: str
    """One of `FORMS[layout]`."""
    aligned: bool = True
    modified: bool = False
    """Whether the input is multiplied by `SCALE` and masked causally, for kernels that support it."""

    def __str__(self) -> str:
        dtypes = "-".join(dict.fromkeys(self.dtypes))
        suffix = " unaligned" * (not self.aligned) + " scaled, causal" * self.modified
        return f"{self.kernel} {dtypes} {self.layout} {self.rows}x{self.cols} {self.form}{suffix}"

    @property
    def op(self) -> Op:
        return OPS[self.kernel]

    @property
    def backward(self) -> bool:
        return self.kernel == self.op.backward.name

    @property
    def read_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtypes[self.backward])

    @property
    def written_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtypes[not self.backward])

    @property
    def shape_strides_dim(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Shape and strides of the first tensor that is read, and the dim of its rows.

        Except for the first form of each layout, there are gaps in memory between the elements.
        """
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

    def call(self) -> KernelCall:
        """The call that tridal makes for these tensors."""
        shape, strides, dim = self.shape_strides_dim
        layout = row_layout(shape, strides, dim, 0 if self.modified else FEW_ROWS)
        assert layout is not None
        assert layout.layout == self.layout, f"{self} has the layout {layout.layout!r}"
        kernel = self.op.backward if self.backward else self.op.forward
        names = [str(dtype).removeprefix("torch.") for dtype in (self.written_dtype, self.read_dtype)]
        dtypes = (names[0], *names[1:] * len(kernel.reads))
        read_address = 0 if self.aligned else self.read_dtype.itemsize
        addresses = (0, *(read_address,) * len(kernel.reads))
        scale_mask = NO_SCALE_MASK
        if self.modified:
            located = locate_mask(ScaleMask(SCALE, causal=True), shape, strides, (0,) * len(shape), dim)
            assert located is not None
            scale_mask = located
        signature = self.op.gradient_signature if self.backward else self.op.signature
        parameters = signature.parameters({"scale": 1.0, **self.op.parameters}, kernel.parameters)
        return KernelCall(kernel, layout, dtypes, addresses, parameters, scale_mask)

    def plan(self) -> LaunchPlan:
        return launch.plan(self.call(), backend, properties(), OPTIONS)

    def specialization(self) -> Specialization:
        return self.call().specialize(self.plan().config)


@functools.cache
def properties() -> DeviceProperties:
    return backend.properties(0)


def dtypes_for(kernel: str) -> tuple[tuple[str, str], ...]:
    """The pairs of dtypes of a kernel. Third-party kernels have two, because the schedules convert dtypes."""
    built_in = OPS[kernel] in [op for op in library.OPS if op.one_tensor]
    return DTYPES if built_in else (DTYPES[0], DTYPES[-1])


def group(kernel: str, dtypes: tuple[str, str], layout: str) -> list[Case]:
    """The cases of one kernel, pair of dtypes and layout. The order is always the same."""
    return list(dict.fromkeys(_cases(kernel, dtypes, layout)))


def _cases(kernel: str, dtypes: tuple[str, str], layout: str) -> Iterator[Case]:
    all_widths = dtypes == ("float32", "float32")  # other dtypes have similar plans, so half of their widths suffice
    for number, cols in enumerate(widths(kernel, dtypes, layout)):
        if not all_widths and number % 4 in (1, 2):
            continue
        largest = Case(kernel, dtypes, layout, cols, 1 << 20, FORMS[layout][0]).plan().config.rows
        # Enough rows for the largest tile in each of 32 programs, and a second iteration.
        many = min(32 * largest + 7, max(3, MAX_ELEMENTS // cols))
        for rows in (3, many) if all_widths else ((3, many)[number // 2 % 2],):
            forms = FORMS[layout] if rows >= 24 else FORMS[layout][:2]  # blocks need at least 8 neighbouring rows each
            form = forms[(number + rows) % len(forms)]
            yield Case(kernel, dtypes, layout, cols, rows, form, aligned=(number + rows) % 4 != 0)


@functools.cache
def widths(kernel: str, dtypes: tuple[str, str], layout: str) -> list[int]:
    """The widths of a row on both sides of every change of the plan's configuration, and the widest one."""

    def config(cols: int) -> object:
        return Case(kernel, dtypes, layout, cols, 1 << 20, FORMS[layout][0]).plan().config

    powers = [1 << k for k in range(1, WIDEST_ROW.bit_length())]
    found = [width for power in powers if config(power) != config(power + 1) for width in (power, power + 1)]
    return sorted({1 if layout == "inner" else 2, *found, WIDEST_ROW - 3})
