"""Tables of results: which providers were measured, their shares of copy, missed aims, and a whole run as Markdown."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tridal.benchmarks.providers import COPY, OURS
from tridal.benchmarks.results import Row, Rows, distinct, select
from tridal.benchmarks.workloads import SHAPE_CLASSES
from tridal.devices.registry import HOST

_NOISE = 0.02  # medians with a smaller relative difference count as equal

Table: TypeAlias = tuple[list[str], list[list[str]]]
"""The headings and the lines of a table."""


def providers(rows: Rows, skipped: bool = True) -> list[str]:
    """Returns the provider names except "copy". `skipped` appends the providers that have no measurement."""
    measured = {row["provider"] for row in rows if row["ms"]}
    names = [name for name in distinct(rows, "provider") if name != COPY and (skipped or name in measured)]
    return sorted(names, key=lambda name: name not in measured)


def shares(rows: Rows, **wanted: Any) -> list[float]:
    """Returns the shares of copy of the rows with the wanted values. Skipped measurements have no share."""
    return [row["share_of_copy"] for row in select(rows, **wanted) if row["share_of_copy"]]


def shortfalls(rows: Rows) -> Iterator[str]:
    """Yields a line for each aim of the suite that tridal misses: a share of copy, or the speed of the fastest peer."""
    for row in select(rows, provider=OURS):
        shape_class, share = SHAPE_CLASSES.get(row["group"]), row["share_of_copy"]
        if shape_class is None or share is None:
            continue
        result = f"{row['group']}: {row['shape']} {row['dtype']} {row['direction']}: {share:.2f} of copy"
        aim = shape_class.aims.get(row["direction"], 0)
        if share < aim:
            yield f"{result}, the aim is {aim:.2f}"
        if shape_class.beats_peers:
            workload = {key: row[key] for key in ("op", "group", "dtype", "direction", "shape")}
            peers = [peer for peer in select(rows, **workload) if peer["ms"] and peer["provider"] not in (OURS, COPY)]
            fastest = min(peers, key=lambda peer: float(peer["ms"]), default=row)
            if row["ms"] > fastest["ms"] * (1 + _NOISE):
                yield f"{result}, {fastest['provider']} is {fastest['share_of_copy']:.2f}"


def blocks(rows: Rows) -> Iterator[tuple[str, list[Row]]]:
    """Yields the title and the rows of each table: one per op, shape class, dtype and direction."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((row["op"], row["group"], row["dtype"], row["direction"]), []).append(row)
    for (op, group, dtype, direction), chosen in found.items():
        title = f"{op} {direction}, {dtype}"
        yield title + (f": {SHAPE_CLASSES[group].title}" if group in SHAPE_CLASSES else ""), chosen


def shape_table(rows: Rows, names: Sequence[str], column: str) -> Table:
    """Returns a line per shape with a column's value for each named provider, or "-" if it was skipped."""
    cells = {(row["shape"], row["provider"]): number(row[column], column) for row in rows}
    lines = [[shape, *[cells.get((shape, name), "-") for name in names]] for shape in distinct(rows, "shape")]
    return ["shape", *names], lines


def class_table(rows: Rows, names: Sequence[str]) -> Table:
    """Returns a line per shape class, dtype and direction with each named provider's mean share of copy."""
    lines = []
    for _, chosen in blocks(rows):
        means = [mean_share(shares(chosen, provider=name)) for name in names]
        cells = [number(mean, "share_of_copy") for mean in means]
        lines.append([chosen[0]["group"], chosen[0]["dtype"], chosen[0]["direction"], *cells])
    return ["class", "dtype", "direction", *names], lines


def mean_share(shares: Sequence[float]) -> float | None:
    """Returns the geometric mean of the shares, or None if there are no shares."""
    return statistics.geometric_mean(shares) if shares else None


def host_table(rows: Rows) -> Table:
    """Returns a line per provider with the host times without and with gradient."""
    cells = {(row["provider"], row["grad"]): number(row["us"], "us") for row in rows}
    lines = [[name, *[cells.get((name, grad), "-") for grad in (False, True)]] for name in distinct(rows, "provider")]
    return ["provider", "no grad", "grad"], lines


def number(value: float | None, column: str) -> str:
    """Formats a value of a column; None becomes "-"."""
    if value is None:
        return "-"
    return f"{value:.2f}" if column == "share_of_copy" else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def skip_reasons(rows: Rows) -> list[tuple[str, str, int]]:
    """Returns (provider, reason, number of workloads) for the skipped measurements."""
    reasons = Counter((row["provider"], row["skipped"]) for row in rows if row["skipped"])
    return [(name, why, count) for (name, why), count in reasons.items()]


def describe_conditions(machine: Mapping[str, Any]) -> str:
    """Describes the measurement conditions of a run. `machine` is the entry "machine" of `results.document`."""
    if machine["device"].partition(":")[0] != HOST:
        return "useful traffic, L2 flushed between calls"
    computes = f"backend {machine['backend']!r}" if machine["backend"] else "torch"
    return f"a CPU, where {computes} computes tridal's tensors; do not compare these figures with a GPU's"


def markdown(document: Mapping[str, Any], pictures: Sequence[Path]) -> str:
    """Formats a run (see `results.document`) as a Markdown page."""
    rows, machine = document["measurements"], document["machine"]
    names, versions = providers(rows), document["providers"]
    lines = ["# Benchmark results", ""]
    lines += [f"{machine['name']} (`{machine['device']}`), {describe_conditions(machine)}", ""]
    lines += [f"- command: `{document['command']}`", f"- finished: {document['finished']}"]
    lines += [f"- {key} {machine[key]}" for key in ("python", "torch", "triton", "tridal")]
    lines += [f"- {name} {version}" for name, version in versions.items() if version and name not in machine]
    lines += ["", *[f"![{picture.stem}]({picture.name})" for picture in pictures], ""]
    for title, chosen in blocks(rows):
        lines += [f"## {title}, share of copy", "", *_format(shape_table(chosen, names, "share_of_copy")), ""]
        lines += [f"## {title}, GB/s of useful traffic", "", *_format(shape_table(chosen, [COPY, *names], "gbps")), ""]
    if document["host"]:
        lines += ["## Host time of a call on 8x128, microseconds", "", *_format(host_table(document["host"])), ""]
    if missed := [f"- {shortfall}" for shortfall in shortfalls(rows)]:
        lines += ["## Below the aim", "", *missed, ""]
    if skipped := [f"- {name} ({count}): {why}" for name, why, count in skip_reasons(rows)]:
        lines += ["## Left out", "", *skipped, ""]
    return "\n".join(lines)


def _format(table: Table) -> list[str]:
    headings, lines = table
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (headings, rule, *lines)]
