"""A backend under test, as planned or with its plans overridden, so that every algorithm runs whatever is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, get_args

import torch

import tridal
from tridal import registry, settings
from tridal.testing.checking import Subject
from tridal.types import Algorithm, Backend, DeviceProperties, LaunchPlan, Probe, Problem

_WIDEST_TILE = 16_384  # columns that any device holds on chip


def _algorithm(algorithm: Algorithm) -> Callable[[LaunchPlan, Problem], LaunchPlan]:
    def override(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
        whole = 1 << (problem.cols - 1).bit_length()
        if algorithm == "tile":
            if whole > _WIDEST_TILE:
                return plan
            tile = replace(plan.tile, algorithm=algorithm, cols=whole, rows=min(plan.tile.rows, 2))
        else:  # three whole steps over a row and a ragged one
            tile = replace(plan.tile, algorithm=algorithm, cols=max(16, whole // 4))
        return replace(plan, tile=tile)

    return override


def _single(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
    return replace(plan, programs=1)


PLANS: Mapping[str, Callable[[LaunchPlan, Problem], LaunchPlan] | None] = {
    "planned": None,
    **{algorithm: _algorithm(algorithm) for algorithm in get_args(Algorithm)},
    "single": _single,
}
"""How a case may override the backend's plan: each algorithm that the kernels offer, and one program for all tiles."""


class _Forced:
    """A backend that overrides another's plans, under a name of its own; the rest is the other's."""

    def __init__(self, backend: Backend, plan: str) -> None:
        self.name = f"{backend.name}{plan}"
        self._backend = backend
        self._override = PLANS[plan]

    def __getattr__(self, member: str) -> Any:
        return getattr(self._backend, member)

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        planned = self._backend.plan(problem, device, probe, options)
        assert self._override is not None
        return self._override(planned, problem)


@contextmanager
def subject(backend: Backend, plan: str = "planned", index: int | None = None) -> Iterator[Subject]:
    """tridal's functions on a device of `backend`, which serves every tensor of its type for as long as this lasts.

    Nothing falls back to torch meanwhile. Raises DeviceUnavailableError if the backend can't run here.
    """
    registry.available(backend.name)
    forced: Any = _Forced(backend, plan)
    if plan != "planned":
        registry.register(forced)
    try:
        with settings.use(device=forced.name if plan != "planned" else backend.name, fallback="error"):
            place = torch.device(backend.device_type) if index is None else torch.device(backend.device_type, index)
            yield Subject(place, tridal.softmax, tridal.log_softmax, interpreted=backend.interpreted)
    finally:
        if plan != "planned":
            registry.unregister(forced.name)
