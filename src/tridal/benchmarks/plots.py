"""The pictures of a run. This module needs matplotlib, which `pip install 'tridal[bench]'` installs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tridal.benchmarks import plot_style as look
from tridal.benchmarks.line_plot import SPREAD, plot_lines
from tridal.benchmarks.plot_style import PIXEL, TIMES, Bar, Picture, draw_bars, emphasis, look_of, make_figure, title_of
from tridal.benchmarks.plot_text import UNITS, describe_rates, describe_run, span_of, summarise
from tridal.benchmarks.providers import COPY, OURS
from tridal.benchmarks.report import geometric_mean, has_shares, providers, quantiles, values
from tridal.benchmarks.results import Rows, distinct, select
from tridal.benchmarks.suite_plot import plot_suite
from tridal.benchmarks.workloads import SHAPE_CLASSES

_MAX_TICKS = 7  # of columns
_NAMES_WIDTH, _VALUES_WIDTH = 206, 50  # of the names of classes and of the values in an overview, in CSS pixels
_STEP, _GAP, _MIN_ROW = 9, 16, 38  # between providers, between classes, and of a class, in CSS pixels
_KEYS_PER_LINE = 6


def write_plots(document: Mapping[str, Any], folder: Path) -> dict[Path, str]:
    """Writes the pictures of a run (see `results.document`), and returns the description of each file.

    Raises ImportError if matplotlib is not installed.
    """
    with look.style():
        return {look.save_png(made.figure, folder, made.name): made.description for made in make_pictures(document)}


def make_pictures(document: Mapping[str, Any]) -> Iterator[Picture]:
    """Yields each picture for which the run has data."""
    rows = document["measurements"]
    grid = select(rows, group="grid")
    suite = [row for row in rows if row["group"] != "grid"]
    for dtype in distinct(grid, "dtype"):
        yield _plot_grid(select(grid, dtype=dtype), document)
    for dtype in distinct(suite, "dtype"):
        chosen = select(suite, dtype=dtype)
        if has_shares(chosen):
            yield _plot_overview(chosen, document)
        for direction in distinct(chosen, "direction"):
            yield plot_suite(select(chosen, direction=direction), document)
    if document["host"]:
        yield _plot_host_times(document)


def _plot_grid(rows: Rows, document: Mapping[str, Any]) -> Picture:
    """Plots rates against N in one panel per direction, with the rate of `copy_` as reference."""
    from matplotlib.ticker import MaxNLocator

    op, dtype, directions = rows[0]["op"], rows[0]["dtype"], distinct(rows, "direction")
    names = [*providers(rows, skipped=False), COPY]
    title = f"{op} of {rows[0]['rows']:,} rows, {dtype}"
    caption = f"{describe_rates(document['machine'], 'gbps')} {SPREAD} {describe_run(document)}"
    figure, axes = make_figure(title, f"{UNITS['gbps']}, by number of columns", caption, [(220, 26)] * len(directions))
    for axis, direction in zip(axes, directions, strict=True):
        chosen = sorted(select(rows, direction=direction), key=lambda row: row["cols"])
        cols = distinct(chosen, "cols")
        ticks = cols if len(cols) <= _MAX_TICKS else MaxNLocator(_MAX_TICKS).tick_values(cols[0], cols[-1])
        ticks = [value for value in ticks if cols[0] <= value <= cols[-1]]
        axis.set_xticks(ticks, [f"{value:,.0f}" for value in ticks])
        margin = 0.02 * (cols[-1] - cols[0]) or 1
        axis.set_xlim(cols[0] - 2 * margin, cols[-1] + margin)
        axis.set_title(direction)
        plot_lines(axis, [[(row["cols"], row) for row in chosen]], names, "gbps", rows)
    found = (f"{direction}: {summarise(select(rows, direction=direction), names, 'gbps')}" for direction in directions)
    return Picture(f"grid-{dtype}", figure, f"{title}: {UNITS['gbps']}; {'; '.join(found)}.")


def _plot_overview(rows: Rows, document: Mapping[str, Any]) -> Picture:
    """Returns a picture of the rows of one dtype, with one panel per direction."""
    names, groups = providers(rows, skipped=False), [name for name in SHAPE_CLASSES if select(rows, group=name)]
    directions, title = distinct(rows, "direction"), f"{rows[0]['op']} by class of shapes, {rows[0]['dtype']}"
    row_height = max(_MIN_ROW, _STEP * (len(names) - 1) + _GAP)
    caption = (
        "Dots and values: geometric mean of the class. Lines: down to its worst shape. Hollow: not all shapes ran."
    )
    caption = f"{caption} {describe_rates(document['machine'], 'share_of_copy')} {describe_run(document)}"
    header = 22.0 * -(-len(names) // _KEYS_PER_LINE)
    figure, axes = make_figure(
        title, "share of copy (1.0 = as fast as y.copy_(x))", caption, [(row_height * len(groups), 26)],
        columns=len(directions), left=_NAMES_WIDTH, right=_VALUES_WIDTH, header=header,
    )  # fmt: skip
    for axis, direction in zip(axes, directions, strict=True):
        axis.set_title(direction)
        axis.set(xlim=(0, 1.2), ylim=(row_height * len(groups), 0), yticks=[])
        axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1.0"])
        axis.grid(visible=True, axis="x")
        axis.axvline(1, **look.COPY_LINE)
        for index, group in enumerate(groups):
            chosen, top = select(rows, direction=direction, group=group), index * row_height
            if index:
                axis.axhline(top, color=look.FAINT, lw=0.6)
            for offset, name in enumerate(names):
                middle = top + row_height / 2 + (offset - (len(names) - 1) / 2) * _STEP
                _draw_dot(axis, middle, name, select(chosen, provider=name))
    for index, group in enumerate(groups):
        middle = (index + 0.5) * row_height
        place = {"transform": axes[0].get_yaxis_transform(), "va": "center_baseline"}
        left = (12 - _NAMES_WIDTH) / axes[0].bbox.width
        axes[0].text(left, middle - 8, SHAPE_CLASSES[group].title, **place)
        shapes = span_of(distinct(select(rows, group=group), "shape"))
        axes[0].text(left, middle + 8, shapes, color=look.QUIET, fontsize=look.SMALL * PIXEL, **place)
    _add_key(figure, names)
    found = (f"{one}: {summarise(select(rows, direction=one), names, 'share_of_copy')}" for one in directions)
    return Picture(f"overview-{rows[0]['dtype']}", figure, f"{title}: share of copy; {'; '.join(found)}.")


def _draw_dot(axis: Any, y: float, name: str, rows: Rows) -> None:
    """Draws the mean share of a provider, and a line to its lowest one. Writes tridal's mean beside the panel."""
    found, own = values(rows), look_of(name)
    mean = geometric_mean(found)
    if mean is None:
        return
    is_ours, is_hollow = name == OURS, len(found) < len(rows)
    axis.hlines(y, min(found), mean, color=own.light, lw=2 if is_ours else 1)
    axis.plot(
        mean, y, own.marker, color=own.light, mfc=look.PAPER if is_hollow else own.light, clip_on=False,
        ms=6 if is_ours else 4.5, mew=0.9, zorder=4,
    )  # fmt: skip
    if is_ours:
        axis.annotate(f"{mean:.2f}", (1, y), (8 * PIXEL, 0), ("axes fraction", "data"), "offset points",
                      va="center_baseline", **emphasis(name))  # fmt: skip


def _add_key(figure: Any, names: Sequence[str]) -> None:
    """Adds the marker and the name of each provider below the subtitle."""
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], ls="", marker=look_of(name).marker, color=look_of(name).light, ms=5) for name in names]
    key = figure.legend(
        marks, [title_of(name) for name in names], loc="upper left", ncols=_KEYS_PER_LINE, borderpad=0, borderaxespad=0,
        handlelength=1, handletextpad=0.2, columnspacing=1.2, fontsize=look.TEXT * PIXEL,
        bbox_to_anchor=(7 / figure.bbox.width, 1 - 56 / figure.bbox.height),
    )  # fmt: skip
    for name, text in zip(names, key.get_texts(), strict=True):
        text.set(**emphasis(name))


def _plot_host_times(document: Mapping[str, Any]) -> Picture:
    """Plots how many microseconds a call keeps the host busy."""
    rows = sorted((row for row in document["host"] if row["us"]), key=lambda row: row["grad"])
    times = {row["provider"]: row["us"] for row in rows}
    names = sorted(times, key=times.__getitem__)
    caption = f"Medians. Thin lines: 20% to 80% quantile. Hollow: unreliable. {describe_run(document)}"
    title, headings, parts = f"Host time of {document['op']} on 8{TIMES}128", ("without gradient", "with gradient"), []
    sizes = [(24 * len(names), 6)]
    figure, axes = make_figure(title, "microseconds of a call", caption, sizes, columns=2, left=104, right=60)
    for axis, heading, grad in zip(axes, headings, (False, True), strict=True):
        bars = []
        for row in select(rows, grad=grad):
            name, text = row["provider"], f"{row['us']:.1f}"
            bars.append(Bar(names.index(name), name, row["us"], text, quantiles(row, "us"), row["noisy"]))
        axis.set_title(heading)
        titles = {y: (name, title_of(name) if axis is axes[0] else "") for y, name in enumerate(names)}
        draw_bars(axis, bars, max(row["us_80"] for row in rows), titles)
        bars.sort()
        parts.append(f"{heading} " + ", ".join(f"{title_of(bar.provider)} {bar.text}" for bar in bars))
    return Picture("host", figure, f"{title} in microseconds: {'; '.join(parts)}.")
