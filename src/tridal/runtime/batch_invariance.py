"""Batch invariance: a row's result, to the last bit, whatever rows are around it and however many.

A result depends on how a row is cut into tiles and in which order its parts are summed; the compiler decides on that
by a tile's shape and by what it is promised of addresses. So a plan is asked for as if there always were the same
number of rows, and nothing is promised that hangs on how many there are or on where among them a row lies.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from tridal.devices.types import Backend, DeviceProperties, LaunchPlan, Probe, Problem, Tile
from tridal.runtime import specialization as variants

_ROWS = 4096
"""Of every plan: as many as keep a device busy."""

_OF_A_ROW = {"out_ptr", "in_ptr", "y_ptr", "words", "cols", "in_inner", "out_inner", "in_outer", "out_outer"}
"""Arguments that are multiples of that if a row's length is, and nothing is off its boundary."""


class Invariant:
    """A backend that plans another's launches for any number of rows alike."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, member: str) -> Any:
        return getattr(self._backend, member)

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """The other's plan for a fixed number of rows, launched for as many as there are."""
        alike = replace(problem, outer=1, inner=_ROWS, aligned=True)
        planned = self._backend.plan(alike, device, probe, options)
        every = problem.tiles(planned.tile.rows) * planned.tile.split
        programs = min(planned.programs, every) if planned.tile.persistent else every
        return replace(
            planned, programs=programs, reason=f"{planned.reason}; batch-invariant, so as for {_ROWS} rows: {programs}"
        )


@functools.cache
def invariant(backend: Backend) -> Backend:
    """The backend whose plans don't hang on the number of rows."""
    return cast(Backend, Invariant(backend))


class InvariantCall(variants.Call):
    """A call on contiguous tensors that promises the compiler only what holds for each row of any batch."""

    __slots__ = ()

    def variant(self, tile: Tile) -> variants.Variant:
        """As of any call, but that vectors are promised by the length of a row alone."""
        variant = super().variant(tile)
        whole = (
            self.problem.layout == "row" and self.geometry.cols % variants.ALIGNMENT == 0 and not any(self.addresses)
        )
        promised = [name for name, _ in variant.types if name in _OF_A_ROW] if whole else []
        return replace(variant, divisible=tuple(promised))

    def _mask_bytes(self, tile: Tile) -> int:
        return 1
