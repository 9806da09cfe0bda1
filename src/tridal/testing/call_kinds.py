"""The kinds of calls whose plans are searched: their kernel calls, and the cases of the suite that make these calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

from tridal.devices.types import Backend, Layout
from tridal.ops import table
from tridal.ops.row_op import RowOp
from tridal.runtime.row_layout import contiguous_strides, row_layout
from tridal.runtime.scale_mask import ScaleMask
from tridal.runtime.specialization import NO_SCALE_MASK, KernelCall
from tridal.testing.cases import DIRECTIONS, Case, Direction

_SCALE = 0.25


@dataclass(frozen=True, slots=True)
class CallKind:
    """The traits of a call that do not depend on its size."""

    op: RowOp
    direction: Direction
    dtype: str
    layout: Layout
    scaled: bool
    """Whether the input of a forward is scaled."""

    def case(self, rows: int, cols: int) -> Case:
        """Returns the case with this number of rows, each with `cols` elements."""
        shape, dim = ((cols, rows), 0) if self.layout == "inner" else ((rows, cols), -1)
        memory: Any = "stepped" if self.layout == "strided" else "contiguous"
        scale = _SCALE if self.scaled else None
        return Case(
            self.op.name, self.direction, shape, dim, self.dtype, layout=memory, grad_layout=memory, scale=scale
        )

    def call(self, rows: int, cols: int) -> KernelCall:
        """Returns the kernel call of the same case."""
        op, case = self.op, self.case(rows, cols)
        strides = (2 * cols, 2) if self.layout == "strided" else contiguous_strides(case.shape)
        layout = row_layout(case.shape, strides, case.dim % 2)
        assert layout is not None
        kernel, parameters = op.forward, tuple[float | None, ...](op.parameters.values())
        if self.direction == "backward":
            kernel, parameters = op.backward, op.backward_parameters(tuple(op.parameters.values()))
        scale_mask = ScaleMask(_SCALE) if self.scaled else NO_SCALE_MASK
        dtypes = (self.dtype,) * (len(kernel.writes) + len(kernel.reads))
        return KernelCall(kernel, layout, dtypes, (), parameters, scale_mask)


def call_kinds(backend: Backend, ops: Sequence[str] | None) -> Iterator[CallKind]:
    """Yields every kind of call that the backend computes. float32 is the first dtype of an op."""
    for op, dtype, layout in product(
        [op for op in table.selected(ops) if isinstance(op, RowOp)],
        sorted(backend.dtypes, key=lambda name: (name != "float32", name)),
        get_args(Layout),
    ):
        yield from (CallKind(op, direction, dtype, layout, scaled=False) for direction in DIRECTIONS)
        if op.scale_mask and "scale_mask" in backend.features:
            yield CallKind(op, "forward", dtype, layout, scaled=True)
