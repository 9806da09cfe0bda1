"""Result pictures. Needs matplotlib, which `pip install 'tridal[bench]'` installs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tridal.benchmarks.providers import COPY
from tridal.benchmarks.results import Row, distinct, select
from tridal.benchmarks.summary import OURS, ProviderSummary, providers, summarise
from tridal.benchmarks.workloads import SHAPE_CLASSES

_STYLES: Mapping[str, tuple[str, str]] = {
    OURS: ("#d1242f", "o"),
    "torch": ("#1f4e8c", "s"),
    "torch.compile": ("#1a9a6c", "^"),
    "Liger-Kernel": ("#8250c4", "D"),
    "FlagGems": ("#e08a00", "v"),
    "quack": ("#2aa3cf", "P"),
    "naive": ("#8c959f", "x"),
    "torch.jit.script": ("#b08968", "+"),
}
"""Colour and marker of each provider, the same in every picture."""
_AIM = f"aim for {OURS}"
_OTHER = ("#57606a", ".")
_DOTTED, _DASHED = (0, (1, 2)), (0, (4, 3))
_INK, _FAINT = "#24292f", "#d0d7de"
_RC = {
    "font.size": 10, "text.color": _INK, "axes.labelcolor": _INK, "axes.edgecolor": _FAINT, "xtick.color": _INK,
    "ytick.color": _INK, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y",
    "grid.color": "#eaeef2", "axes.axisbelow": True, "legend.frameon": False, "figure.dpi": 150,
    "savefig.bbox": "tight", "savefig.facecolor": "white",
}  # fmt: skip


def write_plots(document: Mapping[str, Any], label: str, folder: Path) -> list[Path]:
    """Draws every picture that a run (see `results.document`) has data for, and returns the files.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    rows, machine = document["measurements"], f"{document['machine']['name']}, torch {document['machine']['torch']}"
    caption = f"{machine}: {label}"
    grid = select(rows, group="grid")
    suite = [row for row in rows if row["group"] != "grid"]
    written = []
    with matplotlib.rc_context(_RC):
        for dtype in distinct(grid, "dtype"):
            written.append(_plot_grid(select(grid, dtype=dtype), dtype, caption, folder / f"grid-{dtype}.png"))
        if suite:
            written.append(_plot_overview(suite, caption, folder / "overview.png"))
        for dtype in distinct(suite, "dtype"):
            for direction in distinct(select(suite, dtype=dtype), "direction"):
                chosen = select(suite, dtype=dtype, direction=direction)
                title = f"{chosen[0]['op']} {direction}, {dtype}"
                written.append(_plot_classes(chosen, title, caption, folder / f"suite-{dtype}-{direction}.png"))
        if document["host"]:
            written.append(_plot_host_times(document["host"], machine, folder / "host.png"))
    return written


def _plot_grid(rows: Sequence[Row], dtype: str, caption: str, file: Path) -> Path:
    """Plots rates against N: a panel per direction, with the rate of `copy_` as reference."""
    directions = distinct(rows, "direction")
    names = [name for name in providers(rows) if summarise(rows, name).measured]
    with _figure(file, f"{rows[0]['op']} of {rows[0]['rows']:,} rows, {dtype}", caption, 1, len(directions)) as axes:
        for axis, direction in zip(axes, directions, strict=True):
            for name in [COPY, *names]:
                line = [row for row in select(rows, provider=name, direction=direction) if row["gbps"]]
                cols = [row["cols"] for row in line]
                _plot_line(axis, name, cols, [row["gbps"] for row in line])
                if name != COPY:
                    band = [[row["gbps"] * row["ms"] / row[key] for row in line] for key in ("ms_80", "ms_20")]
                    axis.fill_between(cols, *band, color=_style(name)[0], alpha=0.12, lw=0)
            axis.set(title=direction, xlabel="N, columns", ylim=(0, None))
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes[0].set_ylabel("useful traffic, GB/s")
        _add_legend(axes, [COPY, *names])
    return file


def _plot_classes(rows: Sequence[Row], title: str, caption: str, file: Path) -> Path:
    """Plots the share of `copy_`'s rate at every shape: a panel per shape class."""
    classes = [shape_class for shape_class in SHAPE_CLASSES if select(rows, group=shape_class.name)]
    names = [name for name in providers(rows) if summarise(rows, name).measured]
    across = min(2, len(classes))
    with _figure(file, title, caption, -(-len(classes) // across), across, height=3.1) as axes:
        for axis, shape_class in zip(axes, classes, strict=False):
            chosen = select(rows, group=shape_class.name)
            shapes = distinct(chosen, "shape")
            for name in names:
                shares = {row["shape"]: row["share_of_copy"] for row in select(chosen, provider=name)}
                _plot_line(axis, name, range(len(shapes)), [shares.get(shape) or float("nan") for shape in shapes])
            axis.axhline(1, color=_INK, lw=0.9, ls=_DOTTED, label=COPY)
            aim = shape_class.aim(chosen[0]["direction"])
            if aim is not None and aim != 1:
                axis.axhline(aim, color=_STYLES[OURS][0], lw=0.8, ls=_DASHED, alpha=0.7, label=_AIM)
            axis.set(title=shape_class.title, xlim=(-0.4, len(shapes) - 0.6), ylabel="share of copy")
            axis.set_ylim(0, max(1.15, 1.05 * axis.dataLim.ymax))
            labels = [_tick_label(shape, shapes) for shape in shapes]
            axis.set_xticks(range(len(shapes)), labels, rotation=35, ha="right", fontsize=8)
        for axis in axes[len(classes) :]:
            axis.set_axis_off()
        _add_legend(axes, [*names, COPY, _AIM], axes[len(classes)] if len(classes) < len(axes) else None)
    return file


def _plot_overview(rows: Sequence[Row], caption: str, file: Path) -> Path:
    """Draws a table of typical shares per provider and shape class: a panel per direction and dtype."""
    from matplotlib import colormaps

    names, classes = providers(rows), [found for found in SHAPE_CLASSES if select(rows, group=found.name)]
    groups = [shape_class.name for shape_class in classes]
    dtypes, directions = distinct(rows, "dtype"), distinct(rows, "direction")
    legend = "; ".join(f"{shape_class.name}: {shape_class.title}" for shape_class in classes)
    caption = f"{textwrap.fill(legend, 60 * len(dtypes))}\n{caption}"
    title = f"{rows[0]['op']}: typical share of copy by class of shapes, the worst below it, how many ran if not all"
    width, height = 0.72 * len(groups), 0.46 * len(names) + 0.7
    panels = [(direction, dtype) for direction in directions for dtype in dtypes]
    with _figure(file, title, caption, len(directions), len(dtypes), height, width) as axes:
        for i, (axis, (direction, dtype)) in enumerate(zip(axes, panels, strict=True)):
            axis.set(title=f"{direction}, {dtype}", xlim=(-0.5, len(groups) - 0.5), ylim=(len(names) - 0.5, -0.5))
            axis.grid(visible=False)
            axis.tick_params(length=0)
            axis.spines[:].set_visible(False)
            axis.set_xticks(range(len(groups)), groups, fontsize=9)
            axis.set_yticks(range(len(names)), names if i % len(dtypes) == 0 else [""] * len(names), fontsize=9)
            for tick in axis.get_yticklabels():
                tick.set_fontweight("bold" if tick.get_text() == OURS else "normal")
            chosen = select(rows, direction=direction, dtype=dtype)
            for y, name in enumerate(names):
                for x, group in enumerate(groups):
                    _add_cell(axis, x, y, summarise(chosen, name, group=group), colormaps["BrBG"])
    return file


def _add_cell(axis: Any, x: int, y: int, summary: ProviderSummary, colormap: Any) -> None:
    if summary.typical is None:
        axis.add_patch(_rectangle(x, y, "#f6f8fa"))
        axis.text(x, y, "none", ha="center", va="center", fontsize=7.5, color="#8c959f")
        return
    axis.add_patch(_rectangle(x, y, colormap(min(0.95, 0.05 + 0.9 * summary.typical))))
    ink = "white" if summary.typical < 0.22 or summary.typical > 0.8 else _INK
    missing = "" if summary.measured == summary.workloads else f" {summary.measured}/{summary.workloads}"
    axis.text(x, y - 0.12, f"{summary.typical:.2f}", ha="center", va="center", fontsize=9.5, color=ink)
    axis.text(x, y + 0.27, f"{summary.worst:.2f}{missing}", ha="center", va="center", fontsize=6.5, color=ink)


def _rectangle(x: int, y: int, colour: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=colour, edgecolor="none")


def _plot_host_times(rows: Sequence[Row], caption: str, file: Path) -> Path:
    """Plots how many microseconds a call keeps the host busy."""
    panels = [("without gradient", False), ("with gradient", True)]
    with _figure(file, "Host time of a call on 8x128", caption, 1, 2, height=2.6) as axes:
        for axis, (title, grad) in zip(axes, panels, strict=True):
            chosen = sorted((row for row in select(rows, grad=grad) if row["us"]), key=lambda row: -row["us"])
            names = [row["provider"] for row in chosen]
            bars = axis.barh(
                names, [row["us"] for row in chosen], color=[_style(name)[0] for name in names], height=0.65
            )
            axis.bar_label(bars, fmt="%.1f", padding=4, fontsize=9)
            axis.set(title=title, xlabel="microseconds")
            axis.grid(visible=False)
            axis.margins(x=0.15)
    return file


@contextmanager
def _figure(
    file: Path, title: str, caption: str, down: int, across: int, height: float = 3.6, width: float = 5.2
) -> Iterator[list[Any]]:
    """Yields the axes of a figure with down x across panels, a title and a caption; writes the file at the end.

    Width and height are those of a panel, in inches.
    """
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        down, across, figsize=(width * across, height * down), squeeze=False, layout="constrained"
    )
    try:
        figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
        figure.supxlabel(caption, fontsize=8.5, x=0.01, ha="left", color="#57606a")
        yield list(axes.flat)
        figure.savefig(file)
    finally:
        pyplot.close(figure)


def _plot_line(axis: Any, name: str, x: Sequence[float], y: Sequence[float]) -> None:
    if name == COPY:
        axis.plot(x, y, color=_INK, lw=1, ls=_DOTTED, label=name)
        return
    colour, marker = _style(name)
    ours = name == OURS
    axis.plot(
        x, y, color=colour, marker=marker if len(x) <= 20 else None, markersize=4.5, label=name,
        lw=2.4 if ours else 1.4, alpha=1 if ours else 0.9, zorder=3 if ours else 2,
    )  # fmt: skip


def _add_legend(axes: Sequence[Any], names: Sequence[str], empty: Any = None) -> None:
    """Adds one legend for all panels: in the empty panel, if given, else to the right of the last one."""
    handles = {handle.get_label(): handle for axis in axes for handle in axis.get_lines()}
    found = [name for name in names if name in handles]
    position = {"loc": "center"} if empty else {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)}
    (empty or axes[-1]).legend([handles[name] for name in found], found, **position)


def _style(name: str) -> tuple[str, str]:
    return _STYLES.get(name, _OTHER)


def _tick_label(shape: str, shapes: Sequence[str]) -> str:
    """Returns the width of a matrix if all shapes are matrices of different widths, else the shape without its dim."""
    widths = {other.partition("x")[2] for other in shapes}
    if len(widths) == len(shapes) and all(other.count("x") == 1 and " dim" not in other for other in shapes):
        return shape.partition("x")[2]
    return shape.partition(" dim")[0]
