"""Results as tables: a summary for the terminal, everything as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tridal.benchmarks.points import CLASSES
from tridal.benchmarks.providers import COPY
from tridal.benchmarks.results import Row, distinct, select
from tridal.benchmarks.summary import Shortfall, providers, shortfalls, standing

_TITLES = {found.name: found.title for found in CLASSES}


def blocks(rows: Sequence[Row]) -> list[tuple[str, dict[str, Any]]]:
    """The groups of rows that make one table each: a title, and what they have in common."""
    found = []
    for op, group, dtype, direction in dict.fromkeys((r["op"], r["group"], r["dtype"], r["direction"]) for r in rows):
        title = f"{op} {direction}, {dtype}" + (f": {_TITLES[group]}" if group in _TITLES else "")
        found.append((title, {"group": group, "dtype": dtype, "direction": direction}))
    return found


def by_shape(rows: Sequence[Row], names: Sequence[str], column: str, **wanted: Any) -> list[list[str]]:
    """A line for each shape: its name, then a column of each provider; "-" where it was left out."""
    mine = select(rows, **wanted)
    cells = {(row["shape"], row["provider"]): number(row[column], column) for row in mine}
    return [[shape, *[cells.get((shape, name), "-") for name in names]] for shape in distinct(mine, "shape")]


def by_class(rows: Sequence[Row], names: Sequence[str]) -> list[list[str]]:
    """A line for each class, dtype and direction: each provider's typical share of `copy_`."""
    lines = []
    for _, wanted in blocks(rows):
        mine = select(rows, **wanted)
        cells = [number(standing(mine, name).typical, "share_of_copy") for name in names]
        lines.append([wanted["group"], wanted["dtype"], wanted["direction"], *cells])
    return lines


def number(value: float | None, column: str) -> str:
    """A figure as the tables show it."""
    if value is None:
        return "-"
    return f"{value:.2f}" if column == "share_of_copy" else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def left_out(rows: Sequence[Row]) -> list[tuple[str, str, int]]:
    """Who was left out, why, and at how many points."""
    reasons = Counter((row["provider"], row["skipped"]) for row in rows if row["skipped"])
    return [(name, why, count) for (name, why), count in reasons.items()]


def said(shortfall: Shortfall) -> str:
    """A shortfall on one line."""
    row = shortfall.row
    where = f"{row['group']}: {row['shape']} {row['dtype']} {row['direction']}"
    return f"{where}: {row['share_of_copy']:.2f} of copy, {shortfall.against} is {shortfall.aim:.2f}"


def markdown(found: Mapping[str, Any], label: str, pictures: Sequence[Path]) -> str:
    """The whole document as Markdown."""
    rows, machine = found["measurements"], found["machine"]
    names = providers(rows)
    lines = ["# Benchmark results", "", f"{machine['name']} (`{machine['device']}`), {label}", ""]
    lines += [f"- command: `{found['command']}`", f"- finished: {found['finished']}"]
    lines += [f"- {key} {machine[key]}" for key in ("python", "torch", "triton", "tridal")]
    lines += [f"- {name} {version}" for name, version in found["providers"].items() if version and name not in machine]
    lines += ["", *[f"![{picture.stem}]({picture.name})" for picture in pictures], ""]
    for title, wanted in blocks(rows):
        for column, unit in (("share_of_copy", "share of copy"), ("gbps", "GB/s of useful traffic")):
            chosen = names if column == "share_of_copy" else [COPY, *names]
            lines += [
                f"## {title}, {unit}",
                "",
                *_table(["shape", *chosen], by_shape(rows, chosen, column, **wanted)),
                "",
            ]
    if found["host"]:
        lines += ["## Host time of a call on 8x128, microseconds", "", *_table(*host(found["host"])), ""]
    missed = [said(shortfall) for shortfall in shortfalls(rows)]
    lines += ["## Below the aim", "", *[f"- {line}" for line in missed], ""] if missed else []
    skipped = [f"- {name} ({count}): {why}" for name, why, count in left_out(rows)]
    return "\n".join([*lines, *(["## Left out", "", *skipped, ""] if skipped else [])])


def host(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings and lines of the host times."""
    lines = []
    for name in distinct(rows, "provider"):
        cells = [select(rows, provider=name, grad=grad) for grad in (False, True)]
        lines.append([name, *[number(found[0]["us"] if found else None, "us") for found in cells]])
    return ["provider", "no grad", "grad"], lines


def _table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (headings, rule, *lines)]
