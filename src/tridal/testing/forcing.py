"""A backend under test, as planned or with its plans overridden, so that every algorithm runs whatever is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeAlias, get_args

import torch

import tridal
from tridal.devices import registry, settings
from tridal.devices.types import Algorithm, Backend, DeviceProperties, LaunchPlan, Probe, Problem, Tile
from tridal.testing.checking import Subject

Override: TypeAlias = Callable[[LaunchPlan, Problem], LaunchPlan]
"""The plan to launch instead of the one that was made for a problem."""

_WIDEST_TILE = 16_384  # columns that any device holds on chip
_RESIDENT = 256  # programs of small parts that any device runs at once, if its programs may wait for each other at all


def _algorithm(algorithm: Algorithm) -> Override:
    def override(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
        whole = 1 << (problem.cols - 1).bit_length()
        plain = replace(_persistent(plan.tile), algorithm=algorithm, split=1)
        if algorithm == "tile":
            if whole > _WIDEST_TILE:
                return plan
            return replace(plan, tile=replace(plain, cols=whole, rows=_several(plan, problem)))
        cols = max(16, whole // 4)  # three whole steps over a row and a ragged one
        if algorithm == "looped" or problem.accumulator == 8:  # float64 is never shared: its sums don't fit a word
            return replace(plan, tile=replace(plain, algorithm="looped", edges=False, cols=cols))
        split = -(-problem.cols // cols)
        tile = replace(plain, rows=1 if problem.layout == "row" else min(plan.tile.rows, 8), cols=cols, split=split)
        return replace(plan, tile=tile, programs=2 * split)

    return override


def _several(plan: LaunchPlan, problem: Problem) -> int:
    """Rows for a tile, of which there are then a few: more take time to interpret and show nothing new."""
    return min(plan.tile.rows, max(2, 1 << (problem.inner // 4).bit_length()))


def _edges(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
    whole = 1 << (problem.cols - 1).bit_length()
    if problem.layout != "row" or whole > _WIDEST_TILE:
        return plan
    tile, rows = _persistent(plan.tile), _several(plan, problem)
    return replace(plan, tile=replace(tile, algorithm="tile", split=1, edges=True, cols=whole, rows=rows))


def _rereads(algorithm: Algorithm) -> Override:
    def override(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
        plan = _algorithm(algorithm)(plan, problem)
        return replace(plan, tile=replace(plan.tile, rereads=True)) if plan.tile.algorithm == algorithm else plan

    return override


def _once(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
    shared = _algorithm("split")(plan, problem)
    programs = problem.rows * shared.tile.split
    if shared.tile.rows > 1 or shared.tile.split == 1 or programs > _RESIDENT:
        return plan
    return replace(shared, tile=replace(shared.tile, persistent=False), programs=programs)


def _single(plan: LaunchPlan, problem: Problem) -> LaunchPlan:
    return replace(plan, programs=plan.tile.split, tile=_persistent(plan.tile))


def _persistent(tile: Tile) -> Tile:
    """The tile for any number of programs, and with what registers the compiler likes."""
    return replace(tile, persistent=True, max_registers=None)


PLANS: Mapping[str, Override | None] = {
    "planned": None,
    **{algorithm: _algorithm(algorithm) for algorithm in get_args(Algorithm)},
    "edges": _edges,
    "rereads": _rereads("tile"),
    "split+rereads": _rereads("split"),
    "split+once": _once,
    "single": _single,
}
"""How a case may override the backend's plan: each algorithm that the kernels offer, a program for each part of a row
that is shared, and one program for all tiles."""


def plans(backend: Backend) -> tuple[str, ...]:
    """Those of `PLANS` that override anything and that the backend's own plans may ask for."""
    return tuple(plan for plan in PLANS if set(plan.split("+")) <= backend.algorithms | {"single", "once"})


class _Forced:
    """A backend that overrides another's plans, under a name of its own; the rest is the other's."""

    def __init__(self, backend: Backend, name: str, override: Override) -> None:
        self.name = f"{backend.name}{name}"
        self._backend = backend
        self._override = override

    def __getattr__(self, member: str) -> Any:
        return getattr(self._backend, member)

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        return self._override(self._backend.plan(problem, device, probe, options), problem)


@contextmanager
def overridden(backend: Backend, name: str, override: Override) -> Iterator[str]:
    """Name of a backend whose plans are those of another, overridden: its own name and `name`. There for a block."""
    forced: Any = _Forced(backend, name, override)
    registry.register(forced)
    try:
        yield forced.name
    finally:
        registry.unregister(forced.name)


@contextmanager
def subject(backend: Backend, plan: str = "planned", index: int | None = None) -> Iterator[Subject]:
    """tridal's functions on a device of `backend`, which serves every tensor of its type for as long as this lasts.

    Nothing falls back to torch meanwhile. Raises DeviceUnavailableError if the backend can't run here.
    """
    registry.available(backend.name)
    override = PLANS[plan]
    name = plan.replace("+", "")
    served = nullcontext(backend.name) if override is None else overridden(backend, name, override)
    with served as name, settings.use(device=name, fallback="error"):
        place = torch.device(backend.device_type) if index is None else torch.device(backend.device_type, index)
        yield Subject(place, tridal.softmax, tridal.log_softmax, interpreted=backend.interpreted)
