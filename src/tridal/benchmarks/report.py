"""Tables of results: rates with their spread, shares of copy, missed aims, and a whole run as Markdown."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tridal.benchmarks.measuring import HOST_NOISE, MAX_SHARE
from tridal.benchmarks.providers import COPY, OURS
from tridal.benchmarks.results import Row, Rows, distinct, select
from tridal.benchmarks.timing import noise_limit
from tridal.benchmarks.workloads import SHAPE_CLASSES
from tridal.devices.registry import HOST

EQUAL = 0.02  # medians with a smaller relative difference count as equal
_NOISY = {"share_of_copy": "share_noisy"}
UNRELIABLE = "~"

Table: TypeAlias = tuple[list[str], list[list[str]]]
"""The headings and the lines of a table."""


def providers(rows: Rows, skipped: bool = True) -> list[str]:
    """Lists the providers except "copy". `skipped` appends those that have no measurement."""
    measured = {row["provider"] for row in rows if row["ms"]}
    names = [name for name in distinct(rows, "provider") if name != COPY and (skipped or name in measured)]
    return sorted(names, key=lambda name: name not in measured)


def has_shares(rows: Rows) -> bool:
    """Tells whether the rows have shares of copy. Those of a CPU have none."""
    return any(row["share_of_copy"] for row in rows)


def values(rows: Rows, column: str = "share_of_copy", **wanted: Any) -> list[float]:
    """Collects a column of the rows with the wanted values, without skipped ones and impossible shares."""
    found = [row[column] for row in select(rows, **wanted)]
    return [value for value in found if value and (column != "share_of_copy" or value <= MAX_SHARE)]


def comparisons(rows: Rows) -> Iterator[tuple[Row, Row | None]]:
    """Yields each measurement of tridal, and that of the fastest other implementation if one ran the workload."""
    workloads: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["ms"] and row["provider"] != COPY:
            key = tuple(row[name] for name in ("op", "group", "dtype", "direction", "shape"))
            workloads.setdefault(key, []).append(row)
    for measured in workloads.values():
        peers = [row for row in measured if row["provider"] != OURS]
        fastest = min(peers, key=lambda row: float(row["ms"]), default=None)
        yield from ((row, fastest) for row in measured if row["provider"] == OURS)


def is_slower(row: Row, peer: Row | None) -> bool:
    """Compares two times. A difference of less than the noise counts as equal."""
    return peer is not None and bool(row["ms"] > peer["ms"] * (1 + EQUAL))


def shortfalls(rows: Rows, aims: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yields a line for each aim of the suite that tridal misses: a share of copy, or the speed of the fastest peer."""
    for row, fastest in comparisons(rows):
        shape_class, share = SHAPE_CLASSES.get(row["group"]), row["share_of_copy"]
        if shape_class is None or share is None:
            continue
        result = (
            f"{row['group']}: {row['shape']} {row['dtype']} {row['direction']}: {_cell(row, 'share_of_copy')} of copy"
        )
        aim = aims.get(row["group"], {}).get(row["direction"], 0)
        if share < aim:
            yield f"{result}, the aim is {aim:.2f}"
        if shape_class.beats_peers and fastest is not None and is_slower(row, fastest):
            yield f"{result}, {fastest['provider']} is {_cell(fastest, 'share_of_copy')}"


def blocks(rows: Rows) -> Iterator[tuple[str, list[Row]]]:
    """Yields the title and the rows of each table: one per op, shape class, dtype and direction."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((row["op"], row["group"], row["dtype"], row["direction"]), []).append(row)
    for (op, group, dtype, direction), chosen in found.items():
        title = f"{op} {direction}, {dtype}"
        yield title + (f": {SHAPE_CLASSES[group].title}" if group in SHAPE_CLASSES else ""), chosen


def shape_table(rows: Rows, names: Sequence[str], column: str) -> Table:
    """Has a line per shape with a column's value for each named provider, or "-" if it was skipped."""
    cells = {(row["shape"], row["provider"]): _cell(row, column) for row in rows}
    lines = [[shape, *[cells.get((shape, name), "-") for name in names]] for shape in distinct(rows, "shape")]
    return ["shape", *names], lines


def class_table(rows: Rows, names: Sequence[str]) -> Table:
    """Has a line per shape class, dtype and direction with each named provider's mean share of copy or rate."""
    column, lines = "share_of_copy" if has_shares(rows) else "gbps", []
    for _, block in blocks(rows):
        cells = []
        for chosen in (select(block, provider=name) for name in names):
            cells.append(_mark(chosen, column) + number(geometric_mean(values(chosen, column)), column))
        lines.append([block[0]["group"], block[0]["dtype"], block[0]["direction"], *cells])
    return ["class", "dtype", "direction", *names], lines


def geometric_mean(found: Sequence[float]) -> float | None:
    """None stands for the mean of no values."""
    return statistics.geometric_mean(found) if found else None


def host_table(rows: Rows) -> Table:
    """Has a line per provider with the host times without and with gradient."""
    cells = {(row["provider"], row["grad"]): _cell(row, "us") for row in rows}
    lines = [[name, *[cells.get((name, grad), "-") for grad in (False, True)]] for name in distinct(rows, "provider")]
    return ["provider", "no grad", "grad"], lines


def _cell(row: Row, column: str) -> str:
    """Formats a value with its 20% and 80% quantiles. A share has no quantiles."""
    text = _mark([row], column) + number(row[column], column)
    if row[column] is None or column == "share_of_copy":
        return text
    low, high = quantiles(row, column)
    return f"{text} ({number(low, column)}-{number(high, column)})"


def _mark(rows: Rows, column: str) -> str:
    return UNRELIABLE if any(row[_NOISY.get(column, "noisy")] for row in rows) else ""


def quantiles(row: Row, column: str) -> tuple[float, float]:
    """The 20% and 80% quantile of a time, or of the rate or share that follows from it."""
    if column in ("ms", "us"):
        return row[f"{column}_20"], row[f"{column}_80"]
    return row[column] * row["ms"] / row["ms_80"], row[column] * row["ms"] / row["ms_20"]


def number(value: float | None, column: str) -> str:
    """Formats a value of a column; None becomes "-"."""
    if value is None:
        return "-"
    return f"{value:.2f}" if column == "share_of_copy" else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def skip_reasons(rows: Rows) -> list[tuple[str, str, int]]:
    """Counts the skipped measurements: (provider, reason, number of workloads)."""
    reasons = Counter((row["provider"], row["skipped"]) for row in rows if row["skipped"])
    return [(name, why, count) for (name, why), count in reasons.items()]


def describe_conditions(machine: Mapping[str, Any]) -> str:
    """Describes the measurement conditions of a run. `machine` is the entry "machine" of `results.document`."""
    if not is_cpu(machine):
        return "useful traffic, L2 flushed between calls"
    if machine["interpreted"]:
        return "a CPU; Triton's interpreter checks results and is slow, so shares of copy and aims are left out"
    computes = f"backend {machine['backend']!r}" if machine["backend"] else "torch"
    return f"a CPU, where {computes} computes tridal's tensors; shares of copy and aims are left out"


def is_cpu(machine: Mapping[str, Any]) -> bool:
    """Tells whether a run measured a CPU."""
    return bool(machine["device"].partition(":")[0] == HOST)


def describe_noise(document: Mapping[str, Any]) -> str:
    """Explains the mark of unreliable values, or returns "" if the run has none."""
    rows, limit = document["measurements"], noise_limit(not is_cpu(document["machine"]))
    if not any(row["noisy"] or row["share_noisy"] for row in rows):
        if not any(row["noisy"] for row in document["host"]):
            return ""
        limit = HOST_NOISE
    text = f"{UNRELIABLE} is unreliable: the 20% and 80% quantiles are further apart than {limit}"
    return text + (f", or the share is greater than {MAX_SHARE}" if has_shares(rows) else "")


def markdown(document: Mapping[str, Any], pictures: Mapping[Path, str]) -> str:
    """Formats a run (see `results.document`) as a Markdown page with pictures and their descriptions."""
    rows, machine = document["measurements"], document["machine"]
    names, versions = providers(rows), document["providers"]
    lines = ["# Benchmark results", ""]
    lines += [f"{machine['name']} (`{machine['device']}`), {describe_conditions(machine)}", ""]
    lines += [f"- command: `{document['command']}`"]
    lines += [f"- date: {document['date']}" + (", interrupted" if document["interrupted"] else "")]
    lines += [f"- {key} {machine[key]}" for key in ("python", "torch", "triton", "tridal")]
    lines += [f"- {name} {version}" for name, version in versions.items() if version and name not in machine]
    lines += ["", "Rates and times are medians, with the 20% and 80% quantiles in brackets.", ""]
    if noise := describe_noise(document):
        lines += [noise + ".", ""]
    for picture, description in pictures.items():
        lines += [f"![{description}]({picture.name})", ""]
    for title, chosen in blocks(rows):
        if has_shares(chosen):
            lines += [f"## {title}, share of copy", "", *as_lines(shape_table(chosen, names, "share_of_copy")), ""]
        lines += [f"## {title}, GB/s of useful traffic", "", *as_lines(shape_table(chosen, [COPY, *names], "gbps")), ""]
    if document["host"]:
        lines += ["## Host time of a call on 8x128, microseconds", "", *as_lines(host_table(document["host"])), ""]
    if missed := [f"- {shortfall}" for shortfall in shortfalls(rows, document["aims"])]:
        lines += ["## Below the aim", "", *missed, ""]
    if skipped := [f"- {name} ({count}): {why}" for name, why, count in skip_reasons([*rows, *document["host"]])]:
        lines += ["## Left out", "", *skipped, ""]
    return "\n".join(lines)


def as_lines(table: Table) -> list[str]:
    """Writes a table in Markdown."""
    headings, lines = table
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (headings, rule, *lines)]
