"""The results of a suite at every shape, as lines. Each panel has one class of shapes, or several small ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tridal.benchmarks.line_plot import SPREAD, plot_lines
from tridal.benchmarks.plot_style import LETTER, PIXEL, QUIET, SMALL, TIMES, Picture, make_figure
from tridal.benchmarks.plot_text import UNITS, describe_rates, describe_run, shape_labels, span_of, summarise
from tridal.benchmarks.providers import COPY
from tridal.benchmarks.report import has_shares, providers
from tridal.benchmarks.results import Rows, distinct, select
from tridal.benchmarks.workloads import SHAPE_CLASSES

_LEFT, _RIGHT, _WIDTH, _HEIGHT = 44, 112, 544, 116  # space beside a panel, and its sizes, in CSS pixels
_GAP = 18  # between classes, in CSS pixels
_TITLE_LETTER = 7.9  # width of a letter of a title, in CSS pixels


@dataclass(slots=True)
class _Class:
    """A class of shapes that were measured, and its place in a panel."""

    name: str
    shapes: Sequence[str]
    start: float = 0
    """The left end in the panel, in CSS pixels."""
    width: float = 0
    """In CSS pixels."""
    is_alone: bool = True
    """Whether the panel has no other class."""

    @property
    def title(self) -> str:
        return SHAPE_CLASSES[self.name].title

    @property
    def labels(self) -> list[str]:
        return shape_labels(self.shapes, self.is_alone)

    @property
    def label_width(self) -> float:
        return LETTER * max(len(line) for label in self.labels for line in label.split("\n"))

    def x(self, shape: str) -> float:
        """Returns the position of a shape in the panel, in CSS pixels."""
        index, last, edge = self.shapes.index(shape), len(self.shapes) - 1, self.label_width / 2
        return self.start + edge + (self.width - 2 * edge) * (index / last if last else 0.5)


def plot_suite(rows: Rows, document: Mapping[str, Any]) -> Picture:
    """Returns a picture with the share of `copy_`'s rate at every shape, or with the rate on a CPU."""
    column, names = "share_of_copy" if has_shares(rows) else "gbps", providers(rows, skipped=False)
    shown = names if column == "share_of_copy" else [*names, COPY]
    title = f"{rows[0]['op']} {rows[0]['direction']}, {rows[0]['dtype']}"
    caption = f"{describe_rates(document['machine'], column)} {SPREAD} {describe_run(document)}"
    found = {name: select(rows, group=name) for name in SHAPE_CLASSES}
    panels = _share_panels([_Class(name, distinct(chosen, "shape")) for name, chosen in found.items() if chosen])
    sizes = [(_HEIGHT, 40 if any("\n" in one.labels[0] for one in panel) else 26) for panel in panels]
    figure, axes = make_figure(title, f"{UNITS[column]}, by shape", caption, sizes, left=_LEFT, right=_RIGHT)
    for axis, panel in zip(axes, panels, strict=True):
        axis.set_xlim(0, _WIDTH)
        ticks = {one.x(shape): label for one in panel for shape, label in zip(one.shapes, one.labels, strict=True)}
        axis.set_xticks(list(ticks), list(ticks.values()))
        parts = []
        for one in panel:
            parts.append([(one.x(row["shape"]), row) for row in select(rows, group=one.name)])
            above = {"xytext": (0, 7 * PIXEL), "textcoords": "offset points", "xycoords": ("data", "axes fraction")}
            axis.annotate(one.title, (one.start, 1), fontweight="bold", **above)
            if TIMES not in one.labels[0]:
                note, look = f"columns ({span_of(one.shapes)})", {"color": QUIET, "fontsize": SMALL * PIXEL}
                axis.annotate(note, (_WIDTH, 1), ha="right", **above, **look)
        plot_lines(axis, parts, shown, column, rows)
    name = f"suite-{rows[0]['dtype']}-{rows[0]['direction']}"
    return Picture(name, figure, f"{title}: {UNITS[column]} by shape; {summarise(rows, names, column)}.")


def _share_panels(classes: Sequence[_Class]) -> list[list[_Class]]:
    """Divides the classes into panels, and places them. Successive classes share a panel that has space for them.

    The last panel is filled first, because the first classes are the largest.
    """
    panels: list[list[_Class]] = []
    used = 0.0
    for one in reversed(classes):
        one.is_alone = False
        one.width = max(_TITLE_LETTER * len(one.title), len(one.shapes) * (one.label_width + 2)) + _GAP
        if not panels or used + one.width > _WIDTH + _GAP:
            panels.insert(0, [])
            used = 0
        panels[0].insert(0, one)
        used += one.width
    for panel in panels:
        start, total = 0.0, sum(one.width for one in panel)
        for one in panel:
            one.is_alone = len(panel) == 1
            one.start, one.width = start, one.width / total * (_WIDTH + _GAP) - _GAP
            start += one.width + _GAP
    return panels
