"""Lines of providers in a panel, with their spread, and their names beside their ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import inf
from statistics import fmean
from typing import Any

from tridal.benchmarks.plot_style import COPY_LINE, LETTER, PAPER, PIXEL, SMALL, emphasis, look_of, title_of
from tridal.benchmarks.providers import COPY, OURS
from tridal.benchmarks.report import quantiles
from tridal.benchmarks.results import Row, Rows

SPREAD = "Medians, with lines from the 20% to the 80% quantile. Hollow: unreliable. k = 1024, M = 1024k."
_MAX_MARKERS = 20  # lines with more points have a band instead of markers and bars
_MAX_RATIO = 50  # of rates on a linear axis
_LABEL_GAP = 14.5  # minimum distance of labels in CSS pixels


def _scale_axis(axis: Any, rows: Rows, column: str) -> None:
    """Sets the y axis for the values of these rows. One for shares of copy has a line for the copy.

    An axis for rates is logarithmic if they differ too much, as in the interpreter.
    """
    values = [row[column] for row in rows if row[column]]
    if column == "share_of_copy":
        axis.set_ylim(0, max(1.12, 1.05 * min(max(values), 2)))
        axis.set_yticks([0, 0.5, 1], ["0", "0.5", "1.0"])
        axis.axhline(1, **COPY_LINE)
        return
    if values and max(values) > _MAX_RATIO * min(values):
        axis.set_yscale("log")
        axis.set_ylim(min(values) / 1.5, max(values) * 1.5)
    elif values:
        axis.set_ylim(0, max(values) * 1.1)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")


def plot_lines(
    axis: Any, parts: Sequence[Sequence[tuple[float, Row]]], names: Sequence[str], column: str, scaled: Rows
) -> None:
    """Plots the rows of each provider at their places on the x axis, and labels the lines at their ends.

    The parts are not connected. The limits of the x axis must be set. The y axis fits the rows `scaled`.
    """
    _scale_axis(axis, scaled, column)
    lines: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for part, (name, line) in product(parts, lines.items()):
        points = [(x, row) for x, row in part if row["provider"] == name]
        _plot_line(axis, name, points, column)
        line += [(x, row[column]) for x, row in points if row["ms"]]
    if column == "share_of_copy":
        lines[COPY] = [(x, 1.0) for x in axis.get_xlim()]
    if found := {name: points for name, points in lines.items() if points}:
        label_lines(axis, found)


def _plot_line(axis: Any, name: str, points: Sequence[tuple[float, Row]], column: str) -> None:
    """Plots a provider's values with their spread. Skipped rows are gaps. Unreliable points are hollow."""
    if not points:
        return
    nan, noisy = float("nan"), "share_noisy" if column == "share_of_copy" else "noisy"
    x, look, front = [at for at, _ in points], look_of(name), 4 if name == OURS else 3
    low, high = zip(*(quantiles(row, column) if row["ms"] else (nan, nan) for _, row in points), strict=True)
    values = [nan if row[column] is None else row[column] for _, row in points]
    line = {"color": look.light, "lw": 2 if name == OURS else 1, "zorder": front}
    if name == COPY:
        axis.plot(x, values, **{**COPY_LINE, "marker": look.marker if len(x) == 1 else None})
        return
    marker = {"marker": look.marker, "ms": 4.5 if name == OURS else 3.5, "mew": 0} if len(x) <= _MAX_MARKERS else {}
    axis.plot(x, values, **line, **marker)
    if marker:
        axis.vlines(x, low, high, color=look.light, lw=0.8, alpha=0.7, zorder=front)
    else:
        axis.fill_between(x, low, high, color=look.light, alpha=0.15, lw=0)
    if hollow := [(at, row[column]) for at, row in points if row["ms"] and row[noisy]]:
        axis.scatter(*zip(*hollow, strict=True), marker=look.marker, s=16, linewidths=0.9, zorder=front + 0.5,
                     facecolors=PAPER, edgecolors=look.light)  # fmt: skip


def label_lines(axis: Any, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Writes the name of each provider beside the end of its line, which is given as points.

    Names to the right of the panel are moved apart. A line that ends earlier has its name beside its last point.
    """
    import numpy as np

    size = np.array([axis.bbox.width, axis.bbox.height])  # in CSS pixels
    to_pixels = axis.transData - axis.transAxes
    points: dict[str, Any] = {name: to_pixels.transform(found).clip(0, 1) * size for name, found in lines.items()}
    last = max(found[-1, 0] for name, found in points.items() if name != COPY or len(points) == 1)
    at_edge = [name for name, found in points.items() if found[-1, 0] >= last]
    heights = spread([points[name][-1, 1] for name in at_edge], _LABEL_GAP, 0, size[1] + _LABEL_GAP)
    places = {name: (size[0] + 10, y) for name, y in zip(at_edge, heights, strict=True)}
    for name, (x, y) in places.items():
        connection = np.array([points[name][-1], (x - 3, y)]) / size
        axis.plot(*connection.T, color=look_of(name).light, lw=0.7, clip_on=False, transform=axis.transAxes)
    early = [name for name in points if name not in places]
    free = []
    for name in early:
        others = [found for other, found in points.items() if other != name]
        x, y = points[name][-1]
        free.append(_free_height(x + 7, y, LETTER * len(title_of(name)), others))
    for name, y in zip(early, spread(free, _LABEL_GAP, 0, size[1]), strict=True):
        places[name] = points[name][-1, 0] + 7, y
    for name, (x, y) in places.items():
        look = {"fontsize": SMALL * PIXEL, "va": "center_baseline", "transform": axis.transAxes}
        axis.text(x / size[0], y / size[1], title_of(name), **look, **emphasis(name))


def _free_height(x: float, y: float, width: float, lines: Sequence[Any]) -> float:
    """Returns the height near y at which a text from x to x + width does not touch the lines above and below."""
    import numpy as np

    span = np.linspace(x, x + width, 8)
    heights = [np.interp(span, found[:, 0], found[:, 1]) for found in lines if found[-1, 0] > x]
    low = max((float(found.max()) for found in heights if found[0] <= y), default=-inf) + _LABEL_GAP / 2
    high = min((float(found.min()) for found in heights if found[0] > y), default=inf) - _LABEL_GAP / 2
    return (low + high) / 2 if low > high else min(max(y, low), high)


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Returns values that are at least `gap` apart, keep their order, and differ little from the given values.

    Minimises the sum of the squared changes, by the min-max formula of isotonic regression for the values less their
    multiples of the gap. Then moves the values into the range from `low` to `high`.
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    less = [values[index] - rank * gap for rank, index in enumerate(order)]
    result, last = [0.0] * len(values), len(values) - 1
    for rank, index in enumerate(order):
        ends = range(rank, len(less))
        fitted = max(min(fmean(less[start : end + 1]) for end in ends) for start in range(rank + 1))
        result[index] = max(low, min(high - last * gap, fitted)) + rank * gap
    return result
