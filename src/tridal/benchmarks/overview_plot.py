"""The overview of a run: each provider's mean and worst share of copy in each class of shapes, as dots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tridal.benchmarks.plot_style import (
    COPY_LINE,
    FAINT,
    PAPER,
    PIXEL,
    QUIET,
    SMALL,
    TEXT,
    Picture,
    emphasis,
    look_of,
    make_figure,
    title_of,
)  # fmt: skip
from tridal.benchmarks.plot_text import describe_rates, describe_run, span_of, summarise
from tridal.benchmarks.providers import OURS
from tridal.benchmarks.report import geometric_mean, providers, shares
from tridal.benchmarks.results import Rows, distinct, select
from tridal.benchmarks.workloads import SHAPE_CLASSES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEFT, _RIGHT = 206, 50  # space for the names of the classes, and for the values, in CSS pixels
_STEP, _GAP, _MIN_ROW = 9, 16, 38  # between providers, between classes, and of a class, in CSS pixels
_KEYS_PER_LINE = 6


def plot_overview(rows: Rows, document: Mapping[str, Any]) -> Picture:
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
        columns=len(directions), left=_LEFT, right=_RIGHT, header=header,
    )  # fmt: skip
    for axis, direction in zip(axes, directions, strict=True):
        axis.set_title(direction)
        axis.set(xlim=(0, 1.2), ylim=(row_height * len(groups), 0), yticks=[])
        axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1.0"])
        axis.grid(visible=True, axis="x")
        axis.axvline(1, **COPY_LINE)
        for index, group in enumerate(groups):
            chosen, top = select(rows, direction=direction, group=group), index * row_height
            if index:
                axis.axhline(top, color=FAINT, lw=0.6)
            for offset, name in enumerate(names):
                middle = top + row_height / 2 + (offset - (len(names) - 1) / 2) * _STEP
                _draw_dot(axis, middle, name, select(chosen, provider=name))
    for index, group in enumerate(groups):
        middle = (index + 0.5) * row_height
        place = {"transform": axes[0].get_yaxis_transform(), "va": "center_baseline"}
        left = (12 - _LEFT) / axes[0].bbox.width
        axes[0].text(left, middle - 8, SHAPE_CLASSES[group].title, **place)
        shapes = span_of(distinct(select(rows, group=group), "shape"))
        axes[0].text(left, middle + 8, shapes, color=QUIET, fontsize=SMALL * PIXEL, **place)
    _add_key(figure, names)
    found = (f"{one}: {summarise(select(rows, direction=one), names, 'share_of_copy')}" for one in directions)
    return Picture(f"overview-{rows[0]['dtype']}", figure, f"{title}: share of copy; {'; '.join(found)}.")


def _draw_dot(axis: Any, y: float, name: str, rows: Rows) -> None:
    """Draws the mean share of a provider, and a line to its lowest one. Writes tridal's mean beside the panel."""
    found, look = shares(rows), look_of(name)
    mean = geometric_mean(found)
    if mean is None:
        return
    is_ours, is_hollow = name == OURS, len(found) < len(rows)
    axis.hlines(y, min(found), mean, color=look.light, lw=2 if is_ours else 1)
    axis.plot(
        mean, y, look.marker, color=look.light, mfc=PAPER if is_hollow else look.light, clip_on=False,
        ms=6 if is_ours else 4.5, mew=0.9, zorder=4,
    )  # fmt: skip
    if is_ours:
        axis.annotate(f"{mean:.2f}", (1, y), (8 * PIXEL, 0), ("axes fraction", "data"), "offset points",
                      va="center_baseline", **emphasis(name))  # fmt: skip


def _add_key(figure: Figure, names: Sequence[str]) -> None:
    """Adds the marker and the name of each provider below the subtitle."""
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], ls="", marker=look_of(name).marker, color=look_of(name).light, ms=5) for name in names]
    key = figure.legend(
        marks, [title_of(name) for name in names], loc="upper left", ncols=_KEYS_PER_LINE, borderpad=0, borderaxespad=0,
        handlelength=1, handletextpad=0.2, columnspacing=1.2, fontsize=TEXT * PIXEL,
        bbox_to_anchor=(7 / figure.bbox.width, 1 - 56 / figure.bbox.height),
    )  # fmt: skip
    for name, text in zip(names, key.get_texts(), strict=True):
        text.set(**emphasis(name))
