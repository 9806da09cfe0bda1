"""The pictures of a run: lines by shape or by number of columns. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tridal.benchmarks import plot_style as look
from tridal.benchmarks.plot_style import Picture, look_of, make_figure, title_of
from tridal.benchmarks.providers import COPY, OURS, PROVIDERS
from tridal.benchmarks.report import describe_conditions, geometric_mean, has_shares, number, providers, quantiles
from tridal.benchmarks.report import values as values_of
from tridal.benchmarks.results import Row, Rows, distinct, select
from tridal.benchmarks.workloads import SHAPE_CLASSES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_UNITS = {"share_of_copy": "share of copy (1.0 = as fast as y.copy_(x))", "gbps": "useful traffic in GB/s"}
_SPREAD = "Medians, with lines from the 20% to the 80% quantile. Hollow: unreliable. k = 1024, M = 1024k."
_MAX_MARKERS = 20  # lines with more points have a band instead of markers and bars
_MAX_RATIO = 50  # of rates on a linear axis
_PANEL = 112.0  # letters beside each other in the labels of a panel


def write_plots(document: Mapping[str, Any], folder: Path) -> dict[Path, str]:
    """Writes the pictures of a run (see `results.document`), and returns the description of each file.

    Raises ImportError if matplotlib is not installed.
    """
    with look.style():
        return {look.save_png(made.draw(), folder, made.name): made.description for made in make_pictures(document)}


def make_pictures(document: Mapping[str, Any]) -> Iterator[Picture]:
    """Yields each picture for which the run has data."""
    rows = document["measurements"]
    for dtype in distinct(rows, "dtype"):
        chosen = select(rows, dtype=dtype)
        if grid := select(chosen, group="grid"):
            title = f"{grid[0]['op']} of {grid[0]['rows']:,} rows, {dtype}"
            yield plot_by_columns(f"grid-{dtype}", title, grid, "gbps", document)
        suite = [row for row in chosen if row["group"] != "grid"]
        for direction in distinct(suite, "direction"):
            found = select(suite, direction=direction)
            column, title = "share_of_copy" if has_shares(found) else "gbps", f"{found[0]['op']} {direction}, {dtype}"
            description = f"{title}: {_UNITS[column]} by shape; {_summarize(found, column)}."
            draw = partial(_draw_by_shape, title, found, column, document)
            yield Picture(f"suite-{dtype}-{direction}", description, draw)


def plot_by_columns(name: str, title: str, rows: Rows, column: str, document: Mapping[str, Any]) -> Picture:
    """Plots rates or shares of copy by the number of columns, in one panel per direction."""
    found = (f"{one}: {_summarize(select(rows, direction=one), column)}" for one in distinct(rows, "direction"))
    description = f"{title}: {_UNITS[column]}; {'; '.join(found)}."
    return Picture(name, description, partial(_draw_by_columns, title, rows, column, document))


def _draw_by_columns(title: str, rows: Rows, column: str, document: Mapping[str, Any]) -> Figure:
    directions, cols = distinct(rows, "direction"), sorted(distinct(rows, "cols"))
    powers = [1 << power for power in range(32) if cols[0] <= 1 << power <= cols[-1]] or [cols[0]]
    figure, axes = _make_figure(title, "number of columns", [2.7] * len(directions), rows, column, document)
    for axis, direction in zip(axes, directions, strict=True):
        axis.set_xscale("log", base=2)
        axis.set_xticks(powers, list(map(_compact, powers)))
        axis.set_title(direction)
        chosen = sorted(select(rows, direction=direction), key=lambda row: row["cols"])
        _plot_lines(axis, [(row["cols"], row) for row in chosen], column)
    return figure


def _draw_by_shape(title: str, rows: Rows, column: str, document: Mapping[str, Any]) -> Figure:
    panels: list[list[tuple[str, float, dict[str, float]]]] = []  # the name, the start and the places of each class
    end = _PANEL
    for group in SHAPE_CLASSES:
        labels = {shape: _shape_label(shape) for shape in distinct(select(rows, group=group), "shape")}
        if not labels:
            continue
        step = 2 + max(len(line) for label in labels.values() for line in label.split("\n"))
        width = max(step * len(labels), 1.2 * len(SHAPE_CLASSES[group].title))
        if end + width > _PANEL:  # successive classes share a panel that has space for them
            panels.append([])
            end = 0
        panels[-1].append((group, end, {shape: end + step * (index + 0.5) for index, shape in enumerate(labels)}))
        end += width + 3
    figure, axes = _make_figure(title, "shape", [1.75] * len(panels), rows, column, document)
    for axis, panel in zip(axes, panels, strict=True):
        for group, start, places in panel:
            heading = SHAPE_CLASSES[group].title
            axis.text(start, 1.04, heading, transform=axis.get_xaxis_transform(), fontweight="bold")
            _plot_lines(axis, [(places[row["shape"]], row) for row in select(rows, group=group)], column)
        axis.set_xlim(0, _PANEL)
        ticks = {place: _shape_label(shape) for _, _, places in panel for shape, place in places.items()}
        axis.set_xticks(list(ticks), list(ticks.values()))
    return figure


def _make_figure(
    title: str, place: str, heights: Sequence[float], rows: Rows, column: str, document: Mapping[str, Any]
) -> tuple[Figure, list[Any]]:
    """The y axes of all panels fit all rows.

    They are logarithmic if rates differ too much, as in the interpreter.
    """
    machine = document["machine"]
    versions = {"tridal": machine["tridal"], "PyTorch": machine["torch"], "Triton": machine["triton"]}
    for name, version in document["providers"].items():
        if name not in PROVIDERS or PROVIDERS[name].distribution not in ("torch", "tridal"):
            versions[name] = version
    measured = ", ".join(f"{name} {version.partition('+')[0]}" for name, version in versions.items() if version)
    caption = f"{machine['name']}, {measured}; {describe_conditions(machine)}. {_SPREAD}"
    names = [*providers(rows, skipped=False), COPY]
    figure, axes = make_figure(title, f"{_UNITS[column]}, by {place}", caption, heights, key=names)
    found = [row[column] for row in rows if row[column]]
    for axis in axes:
        if column == "share_of_copy":
            axis.set_ylim(0, max(1.12, 1.05 * min(max(found), 2)))
            axis.set_yticks([0, 0.5, 1], ["0", "0.5", "1.0"])
            axis.axhline(1, **look.COPY_LINE)
            continue
        if found and max(found) > _MAX_RATIO * min(found):
            axis.set_yscale("log")
        elif found:
            axis.set_ylim(0, max(found) * 1.1)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    return figure, axes


def _plot_lines(axis: Any, points: Sequence[tuple[float, Row]], column: str) -> None:
    """Plots the rows at their places on the x axis, as a line for each provider with the spread.

    Skipped rows are gaps. Unreliable points are hollow.
    """
    nan, noisy = float("nan"), "share_noisy" if column == "share_of_copy" else "noisy"
    for name in distinct([row for _, row in points], "provider"):
        x, rows = zip(*((x, row) for x, row in points if row["provider"] == name), strict=True)
        values = [nan if row[column] is None else row[column] for row in rows]
        own, front = look_of(name), 4 if name == OURS else 3
        if name == COPY:
            if column != "share_of_copy":
                axis.plot(x, values, **look.COPY_LINE, marker=own.marker if len(x) == 1 else None)
            continue
        low, high = zip(*(quantiles(row, column) if row["ms"] else (nan, nan) for row in rows), strict=True)
        line = {"color": own.light, "lw": 2 if name == OURS else 1, "zorder": front}
        if len(x) > _MAX_MARKERS:
            axis.plot(x, values, **line)
            axis.fill_between(x, low, high, color=own.light, alpha=0.15, lw=0)
        else:
            axis.plot(x, values, **line, marker=own.marker, ms=4.5 if name == OURS else 3.5, mew=0)
            axis.vlines(x, low, high, color=own.light, lw=0.8, alpha=0.7, zorder=front)
        if hollow := [(at, row[column]) for at, row in zip(x, rows, strict=True) if row["ms"] and row[noisy]]:
            axis.scatter(*zip(*hollow, strict=True), marker=own.marker, s=16, linewidths=0.9, zorder=front + 0.5,
                         facecolors=look.PAPER, edgecolors=own.light)  # fmt: skip


def _compact(number: int) -> str:
    """Shortens multiples of 1024 and of 1024 * 1024 to "1k" and "1M"."""
    for unit, letter in ((1 << 20, "M"), (1 << 10, "k")):
        if number >= unit and number % unit == 0:
            return f"{number // unit}{letter}"
    return str(number)


def _shape_label(shape: str) -> str:
    """Labels a workload in two lines, with compact numbers and without its dimension."""
    sizes, _, rest = shape.partition(" ")
    first, *others = (_compact(int(size)) for size in sizes.split("x"))
    times = "\N{MULTIPLICATION SIGN}"
    return f"{first}\n{times}{times.join(others)}" + (" slice" if "slice" in rest else "")


def _summarize(rows: Rows, column: str) -> str:
    """Describes the geometric mean of each provider's values, and the range of tridal's."""
    parts, total = [], len(distinct(rows, "shape"))
    for name in [*providers(rows, skipped=False), COPY]:
        if not (found := values_of(rows, column, provider=name)):
            continue
        low, mean, high = (number(value, column) for value in (min(found), geometric_mean(found), max(found)))
        notes = [f"{low} to {high}"] if name == OURS and low != high else []
        notes += [f"{len(found)} of {total} shapes"] if len(found) < total else []
        parts.append(f"{title_of(name)} {mean}" + (f" ({', '.join(notes)})" if notes else ""))
    return f"geometric mean {', '.join(parts)}"
