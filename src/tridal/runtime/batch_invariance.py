"""Batch invariance: the result of a row has the same bits in every batch.

The order in which the elements of a row are summed depends on the plan and on the compiled kernel. So every plan is
made for a fixed number of rows, and the compiler may only assume alignments that hold for each row of any batch.
"""

from __future__ import annotations

import functools
from dataclasses import fields, replace

from tridal.devices.types import ALIGNMENT, KernelConfig, Problem
from tridal.runtime.specialization import KernelCall, Specialization

_ROWS = 4096
"""The number of rows that every plan is made for. It is large enough to keep a device busy."""

_ROW_MULTIPLES = {"workspace", "cols", "in_inner", "out_inner", "in_outer", "out_outer"}
"""Arguments that are multiples of 16 in every batch if the row length is such a multiple and addresses are aligned.

Tensors with a number per element are such arguments, too.
"""


class InvariantCall(KernelCall):
    """A call on contiguous tensors. The compiler may only assume alignments that hold for each row of any batch."""

    @functools.cached_property
    def problem(self) -> Problem:
        """The problem of `_ROWS` rows.

        It is aligned, because the order of the sums of a peeled row depends on the position of the row in the batch.
        """
        return replace(self.bucket, outer=1, inner=_ROWS, aligned=True)

    @property
    def planned_for(self) -> str:
        """The number of rows that every plan is made for, in words."""
        return f"batch-invariant, planned for {_ROWS:,} rows"

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


def made_invariant(call: KernelCall) -> InvariantCall:
    """Returns the batch-invariant form of a call on contiguous tensors."""
    return InvariantCall(**{field.name: getattr(call, field.name) for field in fields(call)})
