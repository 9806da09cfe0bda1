"""The pictures of a run: lines by shape or by number of columns. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tridal.benchmarks import plot_style as look
from tridal.benchmarks.plot_style import LETTER, PIXEL, Picture, look_of, make_figure
from tridal.benchmarks.plot_text import UNITS, compact, describe_rates, describe_run, shape_label, summarize
from tridal.benchmarks.providers import COPY, OURS
from tridal.benchmarks.report import has_shares, providers, quantiles
from tridal.benchmarks.results import Row, Rows, distinct, select
from tridal.benchmarks.workloads import SHAPE_CLASSES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPREAD = "Medians, with lines from the 20% to the 80% quantile. Hollow: unreliable. k = 1024, M = 1024k."
_MAX_MARKERS = 20  # lines with more points have a band instead of markers and bars
_MAX_RATIO = 50  # of rates on a linear axis
_GAP = 18  # between classes, in CSS pixels
_TITLE_LETTER = 7.9  # width of a letter of a title, in CSS pixels


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
            yield _plot_by_shape(select(suite, direction=direction), document)


def plot_by_columns(name: str, title: str, rows: Rows, column: str, document: Mapping[str, Any]) -> Picture:
    """Plots rates or shares of copy by the number of columns, in one panel per direction."""
    names, directions = _shown(rows), distinct(rows, "direction")
    found = (f"{one}: {summarize(select(rows, direction=one), names, column)}" for one in directions)
    description = f"{title}: {UNITS[column]}; {'; '.join(found)}."
    return Picture(name, description, partial(_draw_by_columns, title, rows, names, column, document))


def _draw_by_columns(title: str, rows: Rows, names: Sequence[str], column: str, document: Mapping[str, Any]) -> Figure:
    directions = distinct(rows, "direction")
    cols = sorted(distinct(rows, "cols"))
    powers = [1 << power for power in range(32) if cols[0] <= 1 << power <= cols[-1]] or [cols[0]]
    unit, panels = f"{UNITS[column]}, by number of columns", [(230.0, 26.0)] * len(directions)
    figure, axes = make_figure(title, unit, _caption(document, column), panels, key=names)
    for axis, direction in zip(axes, directions, strict=True):
        points = [(row["cols"], row) for row in sorted(select(rows, direction=direction), key=lambda row: row["cols"])]
        axis.set_xscale("log", base=2)
        axis.set_xlim(cols[0] * 0.9, cols[-1] * 1.1)
        axis.set_xticks(powers, [compact(power) for power in powers])
        axis.set_xticks([], minor=True)
        axis.set_title(direction)
        _plot_lines(axis, [points], names, column, rows)
    return figure


class _Class(NamedTuple):
    """A class of shapes in a panel, with its ends and the places of its shapes in CSS pixels."""

    name: str
    start: float
    places: Mapping[str, float]
    end: float


def _plot_by_shape(rows: Rows, document: Mapping[str, Any]) -> Picture:
    """Plots the share of `copy_`'s rate at every shape, or the rate on a CPU. A panel has one class or several."""
    column = "share_of_copy" if has_shares(rows) else "gbps"
    names, title = _shown(rows), f"{rows[0]['op']} {rows[0]['direction']}, {rows[0]['dtype']}"
    description = f"{title}: {UNITS[column]} by shape; {summarize(rows, names, column)}."
    name = f"suite-{rows[0]['dtype']}-{rows[0]['direction']}"
    return Picture(name, description, partial(_draw_by_shape, title, rows, names, column, document))


def _draw_by_shape(title: str, rows: Rows, names: Sequence[str], column: str, document: Mapping[str, Any]) -> Figure:
    panels = _share_panels({name: distinct(select(rows, group=name), "shape") for name in SHAPE_CLASSES})
    sizes = [(116.0, 40.0)] * len(panels)
    figure, axes = make_figure(title, f"{UNITS[column]}, by shape", _caption(document, column), sizes, key=names)
    for axis, panel in zip(axes, panels, strict=True):
        axis.set_xlim(0, panel[-1].end)
        ticks = {x: shape_label(shape) for one in panel for shape, x in one.places.items()}
        axis.set_xticks(list(ticks), list(ticks.values()))
        for one in panel:
            place = {"xytext": (0, 7 * PIXEL), "textcoords": "offset points", "xycoords": ("data", "axes fraction")}
            axis.annotate(SHAPE_CLASSES[one.name].title, (one.start, 1), fontweight="bold", **place)
        parts = [[(one.places[row["shape"]], row) for row in select(rows, group=one.name)] for one in panel]
        _plot_lines(axis, parts, names, column, rows)
    return figure


def _share_panels(classes: Mapping[str, Sequence[str]]) -> list[list[_Class]]:
    """Places the shapes of each class. Successive classes share a panel that has space for them."""
    panels: list[list[_Class]] = []
    x = float(look.PANEL_WIDTH)
    for name, shapes in classes.items():
        letters = max((len(line) for shape in shapes for line in shape_label(shape).split("\n")), default=0)
        width = max((letters * LETTER + 8) * len(shapes), len(SHAPE_CLASSES[name].title) * _TITLE_LETTER)
        if shapes and x + width > look.PANEL_WIDTH:
            panels.append([])
            x = 0
        if shapes:
            step = width / len(shapes)
            panels[-1].append(
                _Class(name, x, {shape: x + step * (i + 0.5) for i, shape in enumerate(shapes)}, x + width)
            )
            x += width + _GAP
    return panels


def _shown(rows: Rows) -> list[str]:
    """Returns the providers of a picture."""
    return [*providers(rows, skipped=False), COPY]


def _caption(document: Mapping[str, Any], column: str) -> str:
    return f"{describe_rates(document['machine'], column)} {SPREAD} {describe_run(document)}"


def _plot_lines(
    axis: Any, parts: Sequence[Sequence[tuple[float, Row]]], names: Sequence[str], column: str, scaled: Rows
) -> None:
    """Plots the rows of each provider at their places on the x axis. The parts are not connected.

    The y axis fits the rows `scaled`. It is logarithmic if rates differ too much, as in the interpreter.
    """
    values = [row[column] for row in scaled if row[column]]
    if column == "share_of_copy":
        axis.set_ylim(0, max(1.12, 1.05 * min(max(values), 2)))
        axis.set_yticks([0, 0.5, 1], ["0", "0.5", "1.0"])
        axis.axhline(1, **look.COPY_LINE)
    elif values and max(values) > _MAX_RATIO * min(values):
        axis.set_yscale("log")
        axis.set_ylim(min(values) / 1.5, max(values) * 1.5)
    elif values:
        axis.set_ylim(0, max(values) * 1.1)
    if column != "share_of_copy":
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    for part, name in product(parts, names):
        _plot_line(axis, name, [(x, row) for x, row in part if row["provider"] == name], column)


def _plot_line(axis: Any, name: str, points: Sequence[tuple[float, Row]], column: str) -> None:
    """Plots a provider's values with their spread. Skipped rows are gaps. Unreliable points are hollow."""
    if not points or (name == COPY and column == "share_of_copy"):
        return
    nan, noisy = float("nan"), "share_noisy" if column == "share_of_copy" else "noisy"
    x, own, front = [at for at, _ in points], look_of(name), 4 if name == OURS else 3
    low, high = zip(*(quantiles(row, column) if row["ms"] else (nan, nan) for _, row in points), strict=True)
    values = [nan if row[column] is None else row[column] for _, row in points]
    line = {"color": own.light, "lw": 2 if name == OURS else 1, "zorder": front}
    if name == COPY:
        axis.plot(x, values, **{**look.COPY_LINE, "marker": own.marker if len(x) == 1 else None})
        return
    marker = {"marker": own.marker, "ms": 4.5 if name == OURS else 3.5, "mew": 0} if len(x) <= _MAX_MARKERS else {}
    axis.plot(x, values, **line, **marker)
    if marker:
        axis.vlines(x, low, high, color=own.light, lw=0.8, alpha=0.7, zorder=front)
    else:
        axis.fill_between(x, low, high, color=own.light, alpha=0.15, lw=0)
    if hollow := [(at, row[column]) for at, row in points if row["ms"] and row[noisy]]:
        axis.scatter(*zip(*hollow, strict=True), marker=own.marker, s=16, linewidths=0.9, zorder=front + 0.5,
                     facecolors=look.PAPER, edgecolors=own.light)  # fmt: skip
