"""What the rows say: shares by class and provider, and where tridal falls short of its aims."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tridal.benchmarks.points import CLASSES
from tridal.benchmarks.providers import COPY
from tridal.benchmarks.results import Row, distinct, select

OURS = "tridal"
_NOISE = 0.02  # two medians that differ by less are the same


@dataclass(frozen=True, slots=True)
class Standing:
    """How a provider stands in one class, dtype and direction."""

    typical: float | None
    """Geometric mean of its shares of `copy_`; None if it ran nowhere."""
    worst: float | None
    measured: int
    points: int


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A point where tridal misses what is aimed at."""

    row: Row
    aim: float
    against: str
    """What the aim is: "the aim", or the peer that was faster."""


def standing(rows: Sequence[Row], provider: str, **wanted: object) -> Standing:
    """The standing of a provider among rows with these values."""
    mine = select(rows, provider=provider, **wanted)
    shares = [row["share_of_copy"] for row in mine if row["share_of_copy"]]
    typical = statistics.geometric_mean(shares) if shares else None
    return Standing(typical, min(shares, default=None), len(shares), len(mine))


def providers(rows: Sequence[Row]) -> list[str]:
    """Who was measured at least once, without `copy_`; those that were left out everywhere come last."""
    ran = {row["provider"] for row in rows if row["ms"]}
    return sorted((name for name in distinct(rows, "provider") if name != COPY), key=lambda name: name not in ran)


def shortfalls(rows: Sequence[Row]) -> Iterator[Shortfall]:
    """Points of the suite where tridal misses its class's share, or a peer that it should be no slower than."""
    classes = {found.name: found for found in CLASSES}
    peers: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["provider"] not in (OURS, COPY) and row["ms"]:
            peers.setdefault(_where(row), []).append(row)
    for row in select(rows, provider=OURS):
        group = classes.get(row["group"])
        if group is None or row["share_of_copy"] is None:
            continue
        aim = group.aim(row["direction"])
        if aim is not None and row["share_of_copy"] < aim:
            yield Shortfall(row, aim, "the aim")
        best = min(peers.get(_where(row), ()), key=lambda peer: float(peer["ms"]), default=None)
        if group.beats_peers and best is not None and row["ms"] > best["ms"] * (1 + _NOISE):
            yield Shortfall(row, best["share_of_copy"], best["provider"])


def _where(row: Row) -> tuple[str, ...]:
    return row["group"], row["direction"], row["dtype"], row["shape"]
