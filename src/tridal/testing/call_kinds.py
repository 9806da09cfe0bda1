"""The kinds of calls whose plans are searched: the kernels that they launch, and the cases of the suite with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, get_args
from unittest.mock import patch

import torch

from tridal.devices import registry, settings
from tridal.devices.types import Backend, KernelConfig, LaunchPlan, Layout
from tridal.ops import table
from tridal.ops.op import Op
from tridal.runtime import launch
from tridal.runtime.row_layout import RowLayout, contiguous_strides, row_layout
from tridal.runtime.specialization import KernelCall
from tridal.testing.cases import Case, Direction, is_choice, op_cases, optional_tensors
from tridal.testing.checking import call_function, make_call, make_gradients
from tridal.testing.exact import gradients_of
from tridal.testing.implementation import Implementation, overridden, public_function
from tridal.testing.inputs import make_tensors
from tridal.testing.raised import raised
from tridal.testing.suite import directions, is_defined

_SIZE = (9, 24)
"""Rows and columns of the calls whose kernels are recorded."""
_CLASSES = 3
"""Columns of a case whose rows are the columns of a kernel."""


@dataclass(frozen=True, slots=True)
class CallKind:
    """A kernel of a call, and the traits of the call that do not depend on its size."""

    op: Op
    example: Case
    """The case with `_SIZE`."""
    layout: Layout
    kernel_call: KernelCall
    """The kernel's call of the example."""
    of_rows: bool = True
    """Whether the kernel computes the rows of the case. If not, it reduces a number per row, as one row."""

    @property
    def direction(self) -> Direction:
        """The direction of the case."""
        return self.example.direction

    def case(self, rows: int, cols: int) -> Case:
        """Returns the case whose kernel has this number of rows, each with `cols` elements."""
        rows, cols = (rows, cols) if self.of_rows else (cols, _CLASSES)
        return replace(self.example, shape=_shape(self.example, rows, cols))

    def call(self, rows: int, cols: int) -> KernelCall:
        """Returns the kernel's call of the same case."""
        made = _layout(self.case(rows, cols), self.layout) if self.of_rows else row_layout((cols,), (1,), 0)
        assert made is not None
        return replace(self.kernel_call, layout=made, addresses=())


def _shape(case: Case, rows: int, cols: int) -> tuple[int, ...]:
    return (rows, cols) if case.dim == -1 else (*case.shape[: case.dim], cols, rows)


def _layout(case: Case, layout: Layout) -> RowLayout | None:
    strides = (2 * case.shape[1], 2) if layout == "strided" else contiguous_strides(case.shape)
    return row_layout(case.shape, strides, case.dim % len(case.shape))


def call_kinds(backend: Backend, ops: Sequence[str] | None) -> tuple[list[CallKind], dict[str, str]]:
    """Returns every kind of call that the backend computes, and a description of the fault of each op that raises.

    float32 is the first dtype of an op. Of several calls of a kernel with the same problem, one is kept.
    """
    found: dict[tuple[Any, ...], CallKind] = {}
    faults: dict[str, str] = {}
    with (
        overridden(backend, "recorded", lambda plan, problem: plan) as name,
        settings.use(device=name, fallback="error"),
    ):
        device = torch.device(backend.device_type)
        for op in table.selected(ops):
            registry.invalidate()  # a kernel that was prepared for another op would not be recorded
            try:
                for kind in _kinds(op, backend, Implementation(device, public_function)):
                    kernel, problem = kind.kernel_call.kernel.name, replace(kind.kernel_call, addresses=()).problem
                    found.setdefault((kernel, kind.direction, kind.example.dtype, kind.layout, problem), kind)
            except Exception as error:  # of the declaration of a third party
                faults[op.name] = raised(error)
    return [kind for kind in found.values() if kind.op.name not in faults], faults


def _kinds(op: Op, backend: Backend, implementation: Implementation) -> Iterator[CallKind]:
    """Yields the kinds of calls of an op."""
    for layout, case in _examples(op, backend):
        for call in _launched(case, op, implementation):
            of_rows = call.layout == _layout(case, layout)
            if of_rows or call.layout == row_layout(_SIZE[:1], (1,), 0):
                yield CallKind(op, case, layout, call, of_rows)


def _examples(op: Op, backend: Backend) -> Iterator[tuple[Layout, Case]]:
    """Yields the cases whose kernels are recorded, and the layouts of their rows."""
    optional = optional_tensors(op)
    choices = [argument for argument in (*op.arguments, *op_cases(op).options) if is_choice(argument)]
    options: list[dict[str, Any]] = [{"absent": optional}] * bool(optional)
    options += [{"numbers": ((choice.name, value),)} for choice in choices for value in choice.range or ()]
    for dtype in sorted(backend.dtypes, key=lambda name: (name != "float32", name)):
        for layout, direction in product(get_args(Layout), directions(op)[:2]):
            memory: Any = "stepped" if layout == "strided" else "contiguous"
            grad_memory = memory if op.dim is None else "contiguous"
            rows, cols = _SIZE
            forms: Any = (((cols, rows), 0), ((1, cols, rows), 1)) if layout == "inner" else (((rows, cols), -1),)
            layouts: Any = {"layout": memory, "grad_layout": grad_memory}
            made = [Case(op.name, direction, shape, dim, dtype, **layouts) for shape, dim in forms]
            case = next((case for case in made if is_defined(op, case)), None)
            if case is None:
                continue
            yield layout, case
            for changes in options if dtype == "float32" else ():
                yield layout, replace(case, **changes)
            if op.scale_mask and direction == "forward" and "scale_mask" in backend.features:
                yield layout, replace(case, scale=0.25)


def _launched(case: Case, op: Op, implementation: Implementation) -> list[KernelCall]:
    """Returns the calls of kernels that a case makes. No kernel is planned or launched, so the results are wrong."""
    calls: list[KernelCall] = []
    plan = LaunchPlan(KernelConfig("whole_row", 1, 1), 1, "")

    def prepare(call: KernelCall, *_: Any) -> launch.PreparedLaunch:
        calls.append(call)
        rows = call.problem.rows
        return launch.PreparedLaunch(plan, lambda *_: None, lambda rows: 0, lambda rows: 1, (rows, rows))

    with patch.object(launch, "prepare", prepare):
        tensors = make_tensors(case, op, implementation.device)
        present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        call, _ = make_call(case, op, present, None)
        leaves = [present[name] for name in call.differentiable(call.arguments)]
        for leaf in leaves:
            leaf.requires_grad_(case.direction == "backward")
        results = call_function(case, op, implementation, tensors, None)
        if case.direction == "backward":
            calls.clear()
            call.found = results
            outputs = [results[name] for name in call.given]
            gradients_of(outputs, leaves, make_gradients(case, outputs))
    return calls
