"""The cases of the conformance suite, by op."""

from __future__ import annotations

from collections.abc import Sequence
from pkgutil import resolve_name

from tridal.devices.types import Backend
from tridal.ops import table
from tridal.testing.cases import Case, FusedCase
from tridal.testing.row_cases import row_cases


def cases(backend: Backend, ops: Sequence[str] | None = None) -> tuple[Case | FusedCase, ...]:
    """Returns all cases for a backend that is available here. `ops` are names; None stands for all ops.

    Cases with a dtype that the backend does not compute are left out. Cases with a stream are included only if the
    backend serves torch's accelerator. Cases with `last_device` are included only if the backend has several devices.

    Raises:
        PlanError: an op is unknown or cannot be used. The message suggests similar names.
    """
    found: dict[Case | FusedCase, None] = {}
    for op in table.selected(ops):
        found |= dict.fromkeys(resolve_name(op.cases)(op, backend) if op.cases else row_cases(op, backend))
    return tuple(found)
