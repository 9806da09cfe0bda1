"""Result tables: cells for the terminal, and a whole run as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tridal.benchmarks.providers import COPY
from tridal.benchmarks.results import Row, distinct, select
from tridal.benchmarks.summary import Shortfall, providers, shortfalls, summarise
from tridal.benchmarks.workloads import SHAPE_CLASSES

_TITLES = {shape_class.name: shape_class.title for shape_class in SHAPE_CLASSES}


def blocks(rows: Sequence[Row]) -> list[tuple[str, dict[str, Any]]]:
    """Splits rows into one block per table. Returns each block's title and the column values that select its rows."""
    found = []
    for op, group, dtype, direction in dict.fromkeys((r["op"], r["group"], r["dtype"], r["direction"]) for r in rows):
        title = f"{op} {direction}, {dtype}" + (f": {_TITLES[group]}" if group in _TITLES else "")
        found.append((title, {"group": group, "dtype": dtype, "direction": direction}))
    return found


def by_shape(rows: Sequence[Row], names: Sequence[str], column: str, **wanted: Any) -> list[list[str]]:
    """Returns a table line per shape: its label, then `column` of each named provider, or "-" if it was skipped."""
    chosen = select(rows, **wanted)
    cells = {(row["shape"], row["provider"]): number(row[column], column) for row in chosen}
    return [[shape, *[cells.get((shape, name), "-") for name in names]] for shape in distinct(chosen, "shape")]


def by_class(rows: Sequence[Row], names: Sequence[str]) -> list[list[str]]:
    """Returns a table line per shape class, dtype and direction, with each named provider's typical share of copy."""
    lines = []
    for _, wanted in blocks(rows):
        chosen = select(rows, **wanted)
        cells = [number(summarise(chosen, name).typical, "share_of_copy") for name in names]
        lines.append([wanted["group"], wanted["dtype"], wanted["direction"], *cells])
    return lines


def number(value: float | None, column: str) -> str:
    """Formats a value of a column; None becomes "-"."""
    if value is None:
        return "-"
    return f"{value:.2f}" if column == "share_of_copy" else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def skip_reasons(rows: Sequence[Row]) -> list[tuple[str, str, int]]:
    """Returns (provider, reason, number of workloads) for everything that was skipped."""
    reasons = Counter((row["provider"], row["skipped"]) for row in rows if row["skipped"])
    return [(name, why, count) for (name, why), count in reasons.items()]


def describe_shortfall(shortfall: Shortfall) -> str:
    """Describes a shortfall in one line."""
    row = shortfall.row
    where = f"{row['group']}: {row['shape']} {row['dtype']} {row['direction']}"
    return f"{where}: {row['share_of_copy']:.2f} of copy, {shortfall.against} is {shortfall.aim:.2f}"


def markdown(document: Mapping[str, Any], label: str, pictures: Sequence[Path]) -> str:
    """Formats a run (see `results.document`) as a Markdown page. `label` says how it was measured."""
    rows, machine = document["measurements"], document["machine"]
    names, versions = providers(rows), document["providers"]
    lines = ["# Benchmark results", "", f"{machine['name']} (`{machine['device']}`), {label}", ""]
    lines += [f"- command: `{document['command']}`", f"- finished: {document['finished']}"]
    lines += [f"- {key} {machine[key]}" for key in ("python", "torch", "triton", "tridal")]
    lines += [f"- {name} {version}" for name, version in versions.items() if version and name not in machine]
    lines += ["", *[f"![{picture.stem}]({picture.name})" for picture in pictures], ""]
    for title, wanted in blocks(rows):
        for column, unit in (("share_of_copy", "share of copy"), ("gbps", "GB/s of useful traffic")):
            chosen = names if column == "share_of_copy" else [COPY, *names]
            table = _table(["shape", *chosen], by_shape(rows, chosen, column, **wanted))
            lines += [f"## {title}, {unit}", "", *table, ""]
    if document["host"]:
        lines += ["## Host time of a call on 8x128, microseconds", "", *_table(*host_table(document["host"])), ""]
    if missed := [f"- {describe_shortfall(shortfall)}" for shortfall in shortfalls(rows)]:
        lines += ["## Below the aim", "", *missed, ""]
    if skipped := [f"- {name} ({count}): {why}" for name, why, count in skip_reasons(rows)]:
        lines += ["## Left out", "", *skipped, ""]
    return "\n".join(lines)


def host_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Returns the headings and lines of the table of host times."""
    lines = []
    for name in distinct(rows, "provider"):
        cells = [select(rows, provider=name, grad=grad) for grad in (False, True)]
        lines.append([name, *[number(found[0]["us"] if found else None, "us") for found in cells]])
    return ["provider", "no grad", "grad"], lines


def _table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (headings, rule, *lines)]
