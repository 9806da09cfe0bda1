"""Searches for the widths and row counts at which a backend's plans change, and makes cases for both sides of each.

The search asks the backend for plans and launches nothing. It looks at a grid of sizes. Where two neighbouring sizes of
the grid have different plans, it bisects. It cannot see a difference between two sizes of the grid that have one plan.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, cast

from tridal.devices import registry, settings
from tridal.devices.types import (
    ALIGNMENT,
    Backend,
    DeviceProperties,
    KernelConfig,
    LaunchPlan,
    Probe,
    Problem,
    Resources,
    next_power_of_2,
)
from tridal.runtime import launch
from tridal.runtime.specialization import KernelCall, Specialization
from tridal.testing.call_kinds import CallKind, call_kinds
from tridal.testing.cases import Case, op_cases
from tridal.testing.implementation import Overridden
from tridal.testing.plan_overrides import PLAN_OVERRIDES, overrides

_LONGEST = 1 << 21
"""Elements of the largest tensor with few rows. Its rows are wider than Triton's widest tile."""
_LARGEST, _LARGEST_INTERPRETED = 1 << 22, 1 << 19
"""Elements of the largest tensor of other searches. The interpreter takes about a second for a million elements."""
_ROWS = {"row": (1, 32, 1000), "inner": (2, 32, 1000), "strided": (1, 32)}
"""Row counts for which widths are searched, by layout. The first one keeps every change of a tile's size."""
_COLS = (16, 37, 781, 1024, 5000, 12_288)
"""Widths for which row counts are searched."""
_RANDOM_SIZES = 1  # of the grid between two powers of two
_MAX_CHANGES = 64  # that are kept for one search of widths or row counts


@dataclass(frozen=True, slots=True)
class PlanSearch:
    """The result of `search_plans`."""

    cases: tuple[Case, ...]
    """Cases on both sides of each change."""
    plans: int
    """Number of plans that the backend was asked for."""
    not_reached: tuple[str, ...]
    """The schedules and features that the backend lists, and that neither these plans nor overridden plans use."""
    skipped: tuple[str, ...]
    """The searches that were not made, because the plans of those before compiled `max_compiled` kernels."""
    wrong_ranges: tuple[str, ...] = ()
    """A description of each plan that does not hold for a number of rows in its `row_range`."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Why the calls of an op could not be searched, by the op's name."""


class _Change(NamedTuple):
    """Two sizes (rows, cols) that are neighbours on a line of sizes, and the signatures of their different plans."""

    below: tuple[int, int]
    above: tuple[int, int]
    signatures: tuple[Any, Any]


def search_plans(
    backend: Backend, ops: Sequence[str] | None = None, max_compiled: int = 400,
    track: Callable[[Sequence[CallKind]], Iterable[CallKind]] = iter,
) -> PlanSearch:  # fmt: skip
    """Searches for changes of the plans of a backend that is available here, for each op, dtype and layout.

    `ops` are names; None stands for all ops. A search of one kind of call is started only if fewer than `max_compiled`
    kernels were compiled before, because a plan may compile some. A change that several dtypes or ops share is tested
    with one of them. `track` yields the kinds of calls that it gets, and can show the progress.

    Raises:
        PlanError: an op is unknown or cannot be used. The message suggests similar names.

    Example:
        >>> backend = tridal.registry.available("interpreter")
        >>> tridal.testing.search_plans(backend, ["softmax"], track=lambda kinds: kinds[:1]).wrong_ranges
        ()
    """
    planner, skipped = _Planner(backend), []
    found: dict[tuple[Any, ...], list[CallKind]] = {}
    kinds_of_calls, faults = call_kinds(backend, ops)
    for kind in track(kinds_of_calls):
        if len(planner.compiled) >= max_compiled:
            skipped.append(kind.case(64, 64).name)
            continue
        for change in _changes(kind, planner, backend.interpreted):
            scaled, bare = kind.example.scale is not None, bool(kind.example.absent)
            traits = kind.op.one_tensor, kind.of_rows, kind.direction, kind.layout, scaled, bare, change
            found.setdefault(traits, []).append(kind)
    cases: dict[Case, None] = {}
    for (*_, change), kinds in found.items():
        kind = kinds[zlib.crc32(repr(change).encode()) % len(kinds)]
        sides = (kind.case(*size) for size in (change.below, change.above))
        cases |= dict.fromkeys(case for case in sides if op_cases(kind.op).is_defined(case))
    not_reached = (backend.schedules | backend.features) - planner.used if planner.plans else frozenset()
    if not_reached:
        not_reached -= _used_by_overrides(backend, not_reached)
    wrong_ranges = tuple(filter(None, planner.ranges.values()))
    return PlanSearch(tuple(cases), planner.plans, tuple(sorted(not_reached)), tuple(skipped), wrong_ranges, faults)


def _used_by_overrides(backend: Backend, wanted: Set[str]) -> set[str]:
    """Returns schedules and features that overridden plans use, for a size that the suite has with each override.

    Searches the plans of all ops, because not every op can use every feature. Stops if all the wanted ones are found,
    because plans may compile kernels.
    """
    found: set[str] = set()
    kinds, _ = call_kinds(backend, None)
    for name in sorted(overrides(backend), key=lambda name: wanted.isdisjoint(name.split("+"))):
        override = PLAN_OVERRIDES[name]
        assert override is not None
        overridden: Any = Overridden(backend, "", override)
        planner = _Planner(overridden)
        for kind in kinds:
            planner.signature(kind.call(300, 781), exact=True)
            found |= planner.used
            if wanted <= found:
                return found
    return found


class _Planner:
    """Asks a backend for plans, and counts the kernels that they compile. Stands in for the backend meanwhile."""

    def __init__(self, backend: Backend) -> None:
        self.plans = 0
        self.used: set[str] = set()
        """The schedules and features that the plans use."""
        self.compiled: set[Specialization] = set()
        self.ranges: dict[Any, str | None] = {}
        """The fault of each range, or None, by what plans with this range have in common."""
        self._backend = backend
        self._options = registry.options(backend, settings.current())
        self._device = backend.properties(0)
        self._call: KernelCall

    def __getattr__(self, member: str) -> Any:
        return getattr(self._backend, member)

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """Returns the backend's plan, as `Backend.plan` does."""

        def count(config: KernelConfig) -> Resources:
            self.compiled.add(self._call.specialize(config))
            return probe(config)

        return self._backend.plan(problem, device, count, options)

    def _plan_for(self, call: KernelCall) -> LaunchPlan:
        self.plans, self._call = self.plans + 1, call
        return launch.plan(call, cast(Backend, self), self._device, self._options)

    def _range_fault(self, call: KernelCall, plan: LaunchPlan) -> str | None:
        """Returns a description of a size in the range whose plan is another one, or None if the range holds.

        Plans the ends of the range, and random numbers of rows, or of columns of one row. An exception counts as
        another plan.
        """
        of_rows, problem = plan.row_range is not None, call.problem
        known, own = (plan.row_range, problem.inner) if of_rows else (plan.column_range, problem.cols)
        assert known is not None
        (first, last), generator, kind = known, random.Random(repr(problem)), "row" if of_rows else "column"
        near = max(first, own // 2), min(last, 2 * own)
        for size in dict.fromkeys((first, last, generator.randint(first, last), generator.randint(*near))):
            if not of_rows and (size % ALIGNMENT == 0) != (own % ALIGNMENT == 0):
                continue
            try:
                other = self._plan_for(call.with_rows(size) if of_rows else call.with_cols(size))
            except Exception as error:
                found = f"raises {type(error).__name__}: {error}"
            else:
                programs = plan.programs_for(problem, size) if of_rows else plan.programs
                if (other.config, other.programs) == (plan.config, programs):
                    continue
                found = f"has {other.programs} programs with {other.config}, not {programs} with {plan.config}"
            ranged = f"{call.kernel.name} of {problem.cols} columns: the plan for {own} {kind}s has {kind}_range"
            return f"{ranged} = {known}, but the plan for {size} {kind}s {found}"
        return None

    def signature(self, call: KernelCall, exact: bool) -> Any:
        """Returns the signature of a call's plan, see `_signature`. An exception counts as a plan."""
        try:
            plan = self._plan_for(call)
        except Exception as error:  # the call fails in the same way when it is launched, if it is on a side of a change
            return type(error).__name__
        config = plan.config
        # One width is enough for each tile that differs otherwise.
        sizes = replace(config, cols=0), plan.row_range, plan.column_range is not None
        key = call.kernel, call.dtypes, call.problem.layout, call.scale_mask, *sizes
        if (plan.row_range or plan.column_range) and key not in self.ranges:
            self.ranges[key] = self._range_fault(call, plan)
        features = {
            "peel": config.peel,
            "reload": config.reload,
            "lanes": config.lanes > 1,
            "scale_mask": call.problem.scale_mask,
        }
        self.used |= {config.schedule, *(name for name, used in features.items() if used)}
        return _signature(plan, call.problem, exact)


def _changes(kind: CallKind, planner: _Planner, interpreted: bool) -> Iterator[_Change]:
    """Yields the changes of a kind of calls. A change between two plans that was found before is left out."""
    known: set[tuple[Any, Any]] = set()
    largest = _LARGEST_INTERPRETED if interpreted else _LARGEST
    for index, rows in enumerate(_ROWS[kind.layout] if kind.of_rows else (1,)):
        exact = index == 0 and kind.layout != "strided" and kind.example.scale is None and kind.of_rows
        limit = (_LONGEST if exact and kind.layout == "row" else largest) // rows
        for step, offset in _alignments(kind.layout != "inner"):
            yield from _new(_line(kind, planner, limit, step, offset, partial(_size, rows), exact), known)
    for cols in _COLS if kind.of_rows else ():
        for step, offset in _alignments(kind.layout == "inner"):
            size = partial(_size, cols=cols)
            yield from _new(_line(kind, planner, largest // cols, step, offset, size, exact=False), known)


def _new(changes: Iterator[_Change], known: set[tuple[Any, Any]]) -> Iterator[_Change]:
    """Yields the changes whose signatures are not in `known`, and adds these."""
    for change in changes:
        if change.signatures not in known:
            known.add(change.signatures)
            yield change


def _size(rows: int, cols: int) -> tuple[int, int]:
    return rows, cols


def _alignments(contiguous: bool) -> tuple[tuple[int, int], ...]:
    """Returns (step, offset) of the sizes that are searched together: aligned and unaligned ones, or all."""
    return ((2, 1), (ALIGNMENT, 0)) if contiguous else ((1, 1),)


def _line(
    kind: CallKind, planner: _Planner, limit: int, step: int, offset: int, size: Callable[[int], tuple[int, int]],
    exact: bool,
) -> Iterator[_Change]:  # fmt: skip
    """Yields at most `_MAX_CHANGES` changes along the line of `size(offset)`, `size(offset + step)` and so on."""
    signatures: dict[int, Any] = {}

    def signature(index: int) -> Any:
        if index not in signatures:
            signatures[index] = planner.signature(kind.call(*size(index * step + offset)), exact)
        return signatures[index]

    first, last, found = 0 if offset else 1, (limit - offset) // step, 0
    points = sorted({min(max((n - offset) // step, first), last) for n in _grid(limit)})
    for low, high in pairwise(points):
        while signature(low) != signature(high) and found < _MAX_CHANGES:
            below, above = low, high  # `below` has the signature of `low`, and `above` has another one
            while above - below > 1:
                middle = (below + above) // 2
                below, above = (middle, above) if signature(middle) == signature(low) else (below, middle)
            found += 1
            sides = size(below * step + offset), size(above * step + offset)
            yield _Change(*sides, (signature(below), signature(above)))
            low = above


def _grid(limit: int) -> list[int]:
    """Returns powers of two, their neighbours, and sizes between them, up to `limit`. Some are random, but fixed."""
    generator, sizes = random.Random(0), [limit]
    for exponent in range(limit.bit_length()):
        power = 1 << exponent
        between = [power + power // 2, *(generator.randrange(power, 2 * power) for _ in range(_RANDOM_SIZES))]
        sizes += [power, power + 1, *between]
    return [size for size in sizes if size <= limit]


def _signature(plan: LaunchPlan | str, problem: Problem, exact: bool) -> Any:
    """Returns the part of a plan whose changes are tested.

    A number of programs that is as large as possible is not part of it. If not `exact`, sizes of a tile that are just
    large enough for the problem are not part of it either, because they change at every power of two.
    """
    if isinstance(plan, str):
        return plan
    config = plan.config
    most = problem.tiles(config.rows) * config.programs_per_row
    if config.schedule == "cooperative" and config.programs_per_row == -(-problem.cols // config.cols):
        config = replace(config, programs_per_row=0)
    if not exact and config.cols == next_power_of_2(problem.cols):
        config = replace(config, cols=0)
    if not exact and config.rows == next_power_of_2(problem.inner):
        config = replace(config, rows=0)
    return config, None if plan.programs == most else plan.programs
