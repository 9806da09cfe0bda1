"""Plots of the results. This module needs matplotlib, which `pip install 'tridal[bench]'` installs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tridal.benchmarks.providers import COPY, OURS
from tridal.benchmarks.report import describe_conditions, geometric_mean, has_shares, providers, quantiles, shares
from tridal.benchmarks.results import Row, Rows, distinct, select
from tridal.benchmarks.workloads import SHAPE_CLASSES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLES: Mapping[str, Mapping[str, Any]] = {
    COPY: {"color": "#24292f", "ls": (0, (1, 2)), "lw": 1, "alpha": 1, "marker": "None"},
    OURS: {"color": "#d1242f", "marker": "o", "lw": 2.4, "alpha": 1, "zorder": 3},
    "torch": {"color": "#1f4e8c", "marker": "s"},
    "reference": {"color": "#1f4e8c", "marker": "s"},
    "torch.compile": {"color": "#1a9a6c", "marker": "^"},
    "Liger-Kernel": {"color": "#8250c4", "marker": "D"},
    "FlagGems": {"color": "#e08a00", "marker": "v"},
    "quack": {"color": "#2aa3cf", "marker": "P"},
    "naive": {"color": "#8c959f", "marker": "X"},
    "torch.jit.script": {"color": "#b08968", "marker": "h"},
}
"""Line styles by provider, the same in every picture."""
_AIM = f"aim for {OURS}"
_DOTTED, _DASHED = (0, (1, 2)), (0, (4, 3))
_INK, _FAINT, _GREY = "#24292f", "#d0d7de", "#57606a"
_RC = {
    "font.size": 10, "text.color": _INK, "axes.labelcolor": _INK, "axes.edgecolor": _FAINT, "xtick.color": _INK,
    "ytick.color": _INK, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y",
    "grid.color": "#eaeef2", "axes.axisbelow": True, "legend.frameon": False, "figure.dpi": 150,
    "savefig.bbox": "tight", "savefig.facecolor": "white",
}  # fmt: skip
_SPREAD = "Medians. Lines at points and bands: 20% to 80% quantile. Hollow: unreliable."
_MAX_MARKERS = 20  # lines with more points have a band instead of markers and bars
_MIN_WIDTH = 7.0  # of a figure, in inches
_CAPTION_LETTERS = 14  # per inch


def write_plots(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes the pictures of a run (see `results.document`). Raises ImportError if matplotlib is not installed."""
    from matplotlib import rc_context

    files = []
    with rc_context(_RC):
        for name, figure in make_figures(document):
            files.append(folder / f"{name}.png")
            figure.savefig(files[-1])
    return files


def make_figures(document: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """Yields the name and the figure of each picture for which the run has data."""
    rows, machine = document["measurements"], document["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("torch", "triton", "tridal") if machine[name])
    device = f"{machine['name']}, {versions}"
    caption = f"{device}: {describe_conditions(machine)}. {_SPREAD}"
    grid = select(rows, group="grid")
    suite = [row for row in rows if row["group"] != "grid"]
    for dtype in distinct(grid, "dtype"):
        yield f"grid-{dtype}", _plot_grid(select(grid, dtype=dtype), caption)
    if suite and has_shares(suite):
        yield "overview", _plot_overview(suite, f"{device}: {describe_conditions(machine)}.")
    for dtype, direction in dict.fromkeys((row["dtype"], row["direction"]) for row in suite):
        chosen = select(suite, dtype=dtype, direction=direction)
        yield f"suite-{dtype}-{direction}", _plot_classes(chosen, document["aims"], caption)
    if document["host"]:
        yield "host", _plot_host_times(document["host"], f"{device}. {_SPREAD}")


def _plot_grid(rows: Rows, caption: str) -> Figure:
    """Plots rates against N in one panel per direction, with the rate of `copy_` as reference."""
    directions, names = distinct(rows, "direction"), [COPY, *providers(rows, skipped=False)]
    title = f"{rows[0]['op']} of {rows[0]['rows']:,} rows, {rows[0]['dtype']}"
    figure, axes = _make_figure(title, caption, 1, len(directions))
    for axis, direction in zip(axes, directions, strict=True):
        chosen = sorted(select(rows, direction=direction), key=lambda row: row["cols"])
        for name in names:
            line = select(chosen, provider=name)
            _plot_line(axis, name, [row["cols"] for row in line], line, "gbps")
        cols = distinct(chosen, "cols")
        axis.set(title=direction, xlabel=f"columns ({_span(cols)})")
        if len(cols) <= 8:
            axis.set_xticks(cols, [f"{value:,}" for value in cols])
        else:
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        _scale_rates(axis, rows)
    axes[0].set_ylabel("useful traffic, GB/s")
    _add_legend(axes, names)
    return figure


def _span(values: Sequence[Any]) -> str:
    """Describes a list by its first and last value."""
    return f"{values[0]}" if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _scale_rates(axis: Any, rows: Rows) -> None:
    """Starts a linear axis at zero. Uses a logarithmic axis if the rates differ too much, as in the interpreter."""
    rates = [row["gbps"] for row in rows if row["gbps"]]
    if rates and max(rates) > 50 * min(rates):
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    else:
        axis.set_ylim(0, None)


def _plot_classes(rows: Rows, aims: Mapping[str, Mapping[str, float]], caption: str) -> Figure:
    """Plots the share of `copy_`'s rate at every shape in one panel per shape class. Plots rates if a CPU ran it."""
    classes = [shape_class for name, shape_class in SHAPE_CLASSES.items() if select(rows, group=name)]
    column, direction = "share_of_copy" if has_shares(rows) else "gbps", rows[0]["direction"]
    names = providers(rows, skipped=False) if column == "share_of_copy" else [COPY, *providers(rows, skipped=False)]
    across = min(2, len(classes))
    title = f"{rows[0]['op']} {direction}, {rows[0]['dtype']}"
    figure, axes = _make_figure(title, caption, -(-len(classes) // across), across, height=3.1)
    for axis, shape_class in zip(axes, classes, strict=False):
        chosen = select(rows, group=shape_class.name)
        shapes = distinct(chosen, "shape")
        for name in names:
            found = select(chosen, provider=name)
            _plot_line(axis, name, [shapes.index(row["shape"]) for row in found], found, column)
        axis.set(title=shape_class.title, xlim=(-0.4, len(shapes) - 0.6))
        _label_shapes(axis, shapes)
        if column == "gbps":
            axis.set_ylabel("useful traffic, GB/s")
            _scale_rates(axis, rows)
            continue
        axis.axhline(1, color=_INK, lw=0.9, ls=_DOTTED, label=COPY)
        aim = aims.get(shape_class.name, {}).get(direction, 1)
        if aim != 1:
            axis.axhline(aim, color=_style(OURS)["color"], lw=0.8, ls=_DASHED, alpha=0.7, label=_AIM)
        axis.set_ylabel("percent of copy")
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axis.set_ylim(0, max(1.15, 1.05 * min(axis.dataLim.ymax, 2)))
    if len(classes) < len(axes):
        axes[-1].set_axis_off()
    _add_legend(axes, list(dict.fromkeys([*names, COPY, _AIM])), is_last_empty=len(classes) < len(axes))
    return figure


def _label_shapes(axis: Any, shapes: Sequence[str]) -> None:
    """Labels the shapes: by their widths if all are matrices of different widths, else completely."""
    widths = [shape.partition("x")[2] for shape in shapes]
    labels, xlabel = [shape.partition(" dim")[0] for shape in shapes], "shape"
    if len(set(widths)) == len(shapes) and all(shape.count("x") == 1 and " dim" not in shape for shape in shapes):
        labels, xlabel = widths, f"columns (shape{'s' * (len(shapes) > 1)} {_span(shapes)})"
    axis.set_xticks(range(len(shapes)), labels, rotation=35, ha="right", fontsize=8, rotation_mode="anchor")
    axis.set_xlabel(xlabel, fontsize=8.5, color=_GREY)


def _plot_overview(rows: Rows, caption: str) -> Figure:
    """Shows the mean share per provider and shape class, in one panel per direction and dtype."""
    names, groups = providers(rows), [name for name in SHAPE_CLASSES if select(rows, group=name)]
    dtypes, directions = distinct(rows, "dtype"), distinct(rows, "direction")
    legend = [f"{group}: {SHAPE_CLASSES[group].title} ({_span(_shapes(rows, group))})" for group in groups]
    cells = "Large: geometric mean of the class. Small: its lowest share, and how many of its workloads ran if not all."
    width, height = 0.3 + 0.72 * len(groups), 0.46 * len(names) + 0.85
    caption = f"{cells} {'; '.join(legend)}. {caption}"
    title = f"{rows[0]['op']}: share of copy by class of shapes"
    figure, axes = _make_figure(title, caption, len(directions), len(dtypes), height, max(width, 2.6))
    for axis, (direction, dtype) in zip(axes, product(directions, dtypes), strict=True):
        axis.set(title=f"{direction}, {dtype}", xlim=(-0.5, len(groups) - 0.5), ylim=(len(names) - 0.5, -0.5))
        axis.grid(visible=False)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        axis.set_xticks(range(len(groups)), [group.replace("_", "\n") for group in groups], fontsize=9)
        axis.set_yticks(range(len(names)), names if dtype == dtypes[0] else [""] * len(names), fontsize=9)
        for tick in axis.get_yticklabels():
            tick.set_fontweight("bold" if tick.get_text() == OURS else "normal")
        chosen = select(rows, direction=direction, dtype=dtype)
        for (y, name), (x, group) in product(enumerate(names), enumerate(groups)):
            _add_cell(axis, x, y, select(chosen, provider=name, group=group))
    return figure


def _shapes(rows: Rows, group: str) -> list[str]:
    return distinct(select(rows, group=group), "shape")


def _add_cell(axis: Any, x: int, y: int, rows: Rows) -> None:
    """Shows the mean share and the smallest share. Also shows the number of measured workloads if some were skipped."""
    from matplotlib import colormaps

    found = shares(rows)
    mean = geometric_mean(found)
    colour = "#f6f8fa" if mean is None else colormaps["BrBG"](min(0.95, 0.05 + 0.9 * mean))
    axis.bar(x, 0.92, 0.96, bottom=y - 0.46, color=colour)
    text = {"ha": "center", "va": "center", "color": "#8c959f"}
    if mean is None:
        axis.text(x, y, "none", fontsize=7.5, **text)
        return
    text["color"] = "white" if mean < 0.22 or mean > 0.8 else _INK
    missing = "" if len(found) == len(rows) else f" {len(found)}/{len(rows)}"
    axis.text(x, y - 0.12, f"{mean:.2f}", fontsize=9.5, **text)
    axis.text(x, y + 0.27, f"{min(found):.2f}{missing}", fontsize=6.5, **text)


def _plot_host_times(rows: Rows, caption: str) -> Figure:
    """Plots how many microseconds a call keeps the host busy."""
    figure, axes = _make_figure("Host time of a call on 8x128", caption, 1, 2, height=2.6)
    for axis, title, grad in zip(axes, ("without gradient", "with gradient"), (False, True), strict=True):
        chosen = sorted((row for row in select(rows, grad=grad) if row["us"]), key=lambda row: -row["us"])
        names = [row["provider"] for row in chosen]
        colours = [_style(name)["color"] for name in names]
        bars = axis.barh(names, [row["us"] for row in chosen], color=colours, height=0.65)
        for bar, row in zip(bars, chosen, strict=True):
            bar.set_fill(not row["noisy"])
            bar.set_edgecolor(_style(row["provider"])["color"])
            middle, (low, high) = bar.get_y() + bar.get_height() / 2, quantiles(row, "us")
            axis.hlines(middle, low, high, color=_INK, lw=1)
            axis.annotate(
                f"{row['us']:.1f}", (high, middle), (6, 0), textcoords="offset points", va="center", fontsize=9
            )
        axis.set(title=title, xlabel="microseconds")
        axis.grid(visible=False)
        axis.margins(x=0.15)
    return figure


def _make_figure(
    title: str, caption: str, down: int, across: int, height: float = 3.6, width: float = 5.2
) -> tuple[Figure, list[Any]]:
    """Returns a figure with down x across panels, and their axes. `width` and `height` of a panel are in inches."""
    from matplotlib.figure import Figure

    total = max(_MIN_WIDTH, width * across)
    caption = textwrap.fill(caption, int(total * _CAPTION_LETTERS))
    caption_height = 0.16 * (1 + caption.count("\n"))
    figure = Figure(figsize=(total, height * down + caption_height), layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    figure.supxlabel(caption, fontsize=8.5, x=0.01, ha="left", color=_GREY)
    return figure, list(figure.subplots(down, across, squeeze=False).flat)


def _style(name: str) -> dict[str, Any]:
    other = {"color": _GREY, "marker": ".", "lw": 1.4, "alpha": 0.9, "zorder": 2, "markersize": 4.5}
    return {**other, **_STYLES.get(name, {}), "label": name}


def _plot_line(axis: Any, name: str, x: Sequence[float], rows: Sequence[Row], column: str) -> None:
    """Plots a provider's values with their spread. Skipped rows are gaps. Unreliable points are hollow."""
    if not rows:
        return
    nan, noisy = float("nan"), "share_noisy" if column == "share_of_copy" else "noisy"
    style = _style(name)
    low, high = zip(*(quantiles(row, column) if row["ms"] else (nan, nan) for row in rows), strict=True)
    (line,) = axis.plot(x, [nan if row[column] is None else row[column] for row in rows], **style)
    if len(x) == 1 and name == COPY:
        line.set(marker="_", markersize=12)
    if len(x) > _MAX_MARKERS:
        line.set_marker("None")
        if name != COPY:
            axis.fill_between(x, low, high, color=style["color"], alpha=0.12, lw=0)
    else:
        axis.vlines(x, low, high, color=style["color"], lw=1, alpha=0.7, zorder=style.get("zorder", 2))
    hollow = [(at, row[column]) for at, row in zip(x, rows, strict=True) if row["ms"] and row[noisy]]
    marker = {"marker": "o" if style["marker"] == "None" else style["marker"], "s": 30, "zorder": 4, "linewidths": 1.2}
    if hollow:
        axis.scatter(*zip(*hollow, strict=True), facecolors="white", edgecolors=style["color"], **marker)


def _add_legend(axes: Sequence[Any], names: Sequence[str], is_last_empty: bool = False) -> None:
    """Adds one legend for all panels: in the last one if it is empty, else to its right."""
    handles = {handle.get_label(): handle for axis in axes for handle in axis.get_lines()}
    found = [name for name in names if name in handles]
    position = {"loc": "center"} if is_last_empty else {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)}
    axes[-1].legend([handles[name] for name in found], found, **position)
