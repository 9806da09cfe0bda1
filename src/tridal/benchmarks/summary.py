"""Summaries of result rows: typical and worst share of copy per provider, and where tridal misses its aims."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tridal.benchmarks.providers import COPY
from tridal.benchmarks.results import Row, distinct, select
from tridal.benchmarks.workloads import SHAPE_CLASSES

OURS = "tridal"
_NOISE = 0.02  # two medians that differ by less count as equal


@dataclass(frozen=True, slots=True)
class ProviderSummary:
    """A provider's shares of `copy_`'s rate over a set of rows."""

    typical: float | None
    """Geometric mean of the shares; None if nothing was measured."""
    worst: float | None
    """Smallest share; None if nothing was measured."""
    measured: int
    """Number of workloads with a result."""
    workloads: int
    """Number of workloads, including skipped ones."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A workload where tridal misses an aim."""

    row: Row
    aim: float
    """The share of copy that was expected."""
    against: str
    """The origin of `aim`: "the aim" for that of the shape class, or the name of a faster provider."""


def summarise(rows: Sequence[Row], provider: str, **wanted: object) -> ProviderSummary:
    """Summarises one provider over the rows with the wanted values."""
    chosen = select(rows, provider=provider, **wanted)
    shares = [row["share_of_copy"] for row in chosen if row["share_of_copy"]]
    typical = statistics.geometric_mean(shares) if shares else None
    return ProviderSummary(typical, min(shares, default=None), len(shares), len(chosen))


def providers(rows: Sequence[Row]) -> list[str]:
    """Returns the names of all providers except `copy_`; those that were always skipped come last."""
    measured = {row["provider"] for row in rows if row["ms"]}
    names = (name for name in distinct(rows, "provider") if name != COPY)
    return sorted(names, key=lambda name: name not in measured)


def shortfalls(rows: Sequence[Row]) -> Iterator[Shortfall]:
    """Yields workloads of the suite where tridal misses its class's aim or is slower than a peer it should match."""
    classes = {shape_class.name: shape_class for shape_class in SHAPE_CLASSES}
    peers: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["provider"] not in (OURS, COPY) and row["ms"]:
            peers.setdefault(_workload_key(row), []).append(row)
    for row in select(rows, provider=OURS):
        shape_class = classes.get(row["group"])
        if shape_class is None or row["share_of_copy"] is None:
            continue
        aim = shape_class.aim(row["direction"])
        if aim is not None and row["share_of_copy"] < aim:
            yield Shortfall(row, aim, "the aim")
        best = min(peers.get(_workload_key(row), ()), key=lambda peer: float(peer["ms"]), default=None)
        if shape_class.beats_peers and best is not None and row["ms"] > best["ms"] * (1 + _NOISE):
            yield Shortfall(row, best["share_of_copy"], best["provider"])


def _workload_key(row: Row) -> tuple[str, ...]:
    return row["group"], row["direction"], row["dtype"], row["shape"]
