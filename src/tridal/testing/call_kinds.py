"""The kinds of calls whose plans are searched: their kernel calls, and the cases of the suite that make these calls."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

import torch

from tridal.devices.types import Backend, Layout
from tridal.ops import table
from tridal.ops.op import Op
from tridal.ops.signature import Signature
from tridal.pytorch.path.row_calls import choose_kernel
from tridal.runtime.row_kernel import RowKernel
from tridal.runtime.row_layout import contiguous_strides, row_layout
from tridal.runtime.scale_mask import ScaleMask
from tridal.runtime.specialization import NO_SCALE_MASK, KernelCall
from tridal.testing.cases import DIRECTIONS, Case, Direction, optional_tensors
from tridal.testing.checking import make_call
from tridal.testing.inputs import make_tensors

_SCALE = 0.25


@dataclass(frozen=True, slots=True)
class CallKind:
    """The traits of a call that do not depend on its size."""

    op: Op
    direction: Direction
    dtype: str
    layout: Layout
    scaled: bool = False
    """Whether the input of a forward is scaled."""
    bare: bool = False
    """Whether the optional tensors are absent."""

    def case(self, rows: int, cols: int) -> Case:
        """Returns the case with this number of rows, each with `cols` elements."""
        shape, dim = ((cols, rows), 0) if self.layout == "inner" else ((rows, cols), -1)
        memory: Any = "stepped" if self.layout == "strided" else "contiguous"
        return Case(
            self.op.name, self.direction, shape, dim, self.dtype, layout=memory, grad_layout=memory,
            scale=_SCALE if self.scaled else None, absent=optional_tensors(self.op) if self.bare else (),
        )  # fmt: skip

    def call(self, rows: int, cols: int) -> KernelCall:
        """Returns the kernel call of the same case."""
        case, (kernel, dtypes, parameters) = self.case(rows, cols), _kernel_of(self)
        strides = (2 * cols, 2) if self.layout == "strided" else contiguous_strides(case.shape)
        layout = row_layout(case.shape, strides, case.dim % 2)
        assert layout is not None
        return KernelCall(kernel, layout, dtypes, (), parameters, ScaleMask(_SCALE) if self.scaled else NO_SCALE_MASK)


@functools.lru_cache(maxsize=1024)
def _kernel_of(kind: CallKind) -> tuple[RowKernel, tuple[str, ...], tuple[float | None, ...]]:
    """Returns the kernel of a kind of calls, its dtypes and its parameters."""
    op, case = kind.op, kind.case(4, 8)
    tensors = {n: t for n, t in make_tensors(case, op, torch.device("cpu")).items() if t is not None}
    call, dtypes = make_call(case, op, tensors, None)
    signature: Signature = op.signature
    arguments = call.arguments
    if kind.direction == "backward":
        found = {name: tensor.to(dtypes[name]) for name, tensor in call.results().items()}
        saved, numbers = op.save(arguments, [found.get(result.name) for result in op.results])
        grads = [found.get(result.name) for result in op.results[: op.differentiable_results]]
        mask = [[any(name in tensors for name in names) for names in op.gradient_groups]]
        mask = mask if len(op.gradient_groups) > 1 else []
        signature, arguments = op.gradient_signature, (*grads, *saved, *numbers, *mask)
    named = signature.named(arguments)
    count = op.returned if signature is op.signature else len(signature.results)  # a call returns no statistics
    wanted = [i < count and not signature.is_absent(i, named) for i in range(len(signature.results))]
    kernel, inputs, outputs = choose_kernel(op, signature, arguments, wanted)
    written = [signature.dtypes(named)[index] for index in outputs]
    read = [arguments[position].dtype for position in inputs]
    names = tuple(str(dtype).removeprefix("torch.") for dtype in (*written, *read))
    return kernel, names, signature.parameters(named, kernel.parameters)


def call_kinds(backend: Backend, ops: Sequence[str] | None) -> Iterator[CallKind]:
    """Yields every kind of call that the backend computes. float32 is the first dtype of an op."""
    for op, dtype, layout in product(
        [op for op in table.selected(ops) if op.steps is None],
        sorted(backend.dtypes, key=lambda name: (name != "float32", name)),
        get_args(Layout),
    ):
        if layout == "inner" and any(argument.name == "dims" for argument in op.arguments):
            continue
        absences = (False, True) if optional_tensors(op) and dtype == "float32" else (False,)
        for direction, bare in product(DIRECTIONS[: len(op.kernels)], absences):
            yield CallKind(op, direction, dtype, layout, bare=bare)
        if op.scale_mask and "scale_mask" in backend.features:
            yield CallKind(op, "forward", dtype, layout, scaled=True)
