"""Batch invariance: the result of a row has the same bits in every batch.

The order in which the elements of a row are summed depends on the plan and on the compiled kernel. So every plan is
made for a fixed number of rows, and the compiler may only assume alignments that hold for each row of any batch.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, cast

from tridal.devices.types import (
    ALIGNMENT,
    Backend,
    DeviceProperties,
    KernelConfig,
    LaunchPlan,
    Probe,
    Problem,
    with_row_range,
)
from tridal.runtime.specialization import KernelCall, Specialization

_ROWS = 4096
"""The number of rows that every plan is made for. It is large enough to keep a device busy."""

_ROW_MULTIPLES = {"workspace", "cols", "in_inner", "out_inner", "in_outer", "out_outer"}
"""Arguments that are multiples of 16 in every batch if the row length is such a multiple and addresses are aligned.

Tensors with a number per element are such arguments, too.
"""


class Invariant:
    """Wraps a backend so that the configuration of its plans does not depend on the number of rows."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, member: str) -> Any:
        return getattr(self._backend, member)

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """Returns the backend's plan for `_ROWS` rows, with a number of programs that fits the rows of the problem."""
        fixed = replace(problem, outer=1, inner=_ROWS, aligned=True)
        plan = _plan_for_rows if problem.inner > 1 else _plan_for_rows.__wrapped__  # type: ignore[attr-defined]
        return plan(problem, self._backend.plan(fixed, device, probe, options))


@with_row_range
def _plan_for_rows(problem: Problem, planned: LaunchPlan) -> LaunchPlan:
    """Returns a plan for `_ROWS` rows with a number of programs that fits the rows of the problem."""
    one_tile_each = problem.tiles(planned.config.rows) * planned.config.programs_per_row
    programs = min(planned.programs, one_tile_each) if planned.config.persistent else one_tile_each
    rows = problem.rows
    reason = f"batch-invariant: planned for {_ROWS} rows ({planned.reason}); programs for {rows} rows: {programs}"
    return replace(planned, programs=programs, reason=reason, row_range=None, tiles_per_group=None)


@functools.cache
def invariant(backend: Backend) -> Backend:
    """Wraps a backend in `Invariant`. Results are cached."""
    return cast(Backend, Invariant(backend))


class InvariantCall(KernelCall):
    """A call on contiguous tensors. The compiler may only assume alignments that hold for each row of any batch."""

    def specialize(self, config: KernelConfig) -> Specialization:
        """Specializes as `KernelCall` does, but `divisible` depends on the row length and on addresses only.

        These are the addresses of tensors with a number per element.
        """
        specialization = super().specialize(config)
        multiples = {*_ROW_MULTIPLES, *self.kernel.element_pointers}
        addresses = [a for name, a in zip(self.kernel.pointers, self.addresses, strict=False) if name in multiples]
        aligned = self.problem.layout == "row" and self.layout.cols % ALIGNMENT == 0 and not any(addresses)
        names = [name for name, _ in specialization.types if name in multiples] if aligned else []
        return replace(specialization, divisible=tuple(names))

    def _mask_bytes(self, config: KernelConfig) -> int:
        return 1  # whether the mask of a row is aligned depends on the position of the row in the batch


def made_invariant(backend: Backend, call: KernelCall) -> tuple[Backend, KernelCall]:
    """Returns the batch-invariant forms of a backend and of a call on contiguous tensors."""
    return invariant(backend), InvariantCall(**{field.name: getattr(call, field.name) for field in fields(call)})
