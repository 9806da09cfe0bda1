"""The pictures of a run. This module needs matplotlib, which `pip install 'tridal[bench]'` installs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tridal.benchmarks.line_plot import SPREAD, plot_lines, scale_axis
from tridal.benchmarks.overview_plot import plot_overview
from tridal.benchmarks.plot_style import TIMES, Bar, Picture, draw_bars, make_figure, save_png, style, title_of
from tridal.benchmarks.plot_text import UNITS, describe_rates, describe_run, summarise
from tridal.benchmarks.providers import COPY
from tridal.benchmarks.report import has_shares, providers, quantiles
from tridal.benchmarks.results import Rows, distinct, select
from tridal.benchmarks.suite_plot import plot_suite

_MAX_TICKS = 7  # of columns


def write_plots(document: Mapping[str, Any], folder: Path) -> dict[Path, str]:
    """Writes the pictures of a run (see `results.document`), and returns the description of each file.

    Raises ImportError if matplotlib is not installed.
    """
    with style():
        return {save_png(made.figure, folder, made.name): made.description for made in make_pictures(document)}


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
            yield plot_overview(chosen, document)
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
        scale_axis(axis, rows, "gbps")
        lines = {name: [(row["cols"], row) for row in select(chosen, provider=name)] for name in names}
        plot_lines(axis, [lines], "gbps")
    found = (f"{direction}: {summarise(select(rows, direction=direction), names, 'gbps')}" for direction in directions)
    return Picture(f"grid-{dtype}", figure, f"{title}: {UNITS['gbps']}; {'; '.join(found)}.")


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
