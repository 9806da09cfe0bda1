"""Results as pictures. Needs matplotlib, which `pip install 'tridal[bench]'` brings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tridal.benchmarks.points import CLASSES
from tridal.benchmarks.providers import COPY
from tridal.benchmarks.results import Row, distinct, select
from tridal.benchmarks.summary import OURS, providers, standing

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
_INK, _FAINT = "#24292f", "#d0d7de"
_RC = {
    "font.size": 10, "text.color": _INK, "axes.labelcolor": _INK, "axes.edgecolor": _FAINT, "xtick.color": _INK,
    "ytick.color": _INK, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y",
    "grid.color": "#eaeef2", "axes.axisbelow": True, "legend.frameon": False, "figure.dpi": 150,
    "savefig.bbox": "tight", "savefig.facecolor": "white",
}  # fmt: skip


def draw(found: Mapping[str, Any], label: str, folder: Path) -> list[Path]:
    """Draws what there is to draw, and returns the files.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    rows, machine = found["measurements"], f"{found['machine']['name']}, torch {found['machine']['torch']}"
    caption = f"{machine}: {label}"
    grid = select(rows, group="grid")
    suite = [row for row in rows if row["group"] != "grid"]
    written = []
    with matplotlib.rc_context(_RC):
        for dtype in distinct(grid, "dtype"):
            written.append(_grid(select(grid, dtype=dtype), dtype, caption, folder / f"grid-{dtype}.png"))
        if suite:
            written.append(_overview(suite, caption, folder / "overview.png"))
        for dtype in distinct(suite, "dtype"):
            for direction in distinct(select(suite, dtype=dtype), "direction"):
                chosen = select(suite, dtype=dtype, direction=direction)
                title = f"{chosen[0]['op']} {direction}, {dtype}"
                written.append(_classes(chosen, title, caption, folder / f"suite-{dtype}-{direction}.png"))
        if found["host"]:
            written.append(_host(found["host"], machine, folder / "host.png"))
    return written


def _grid(rows: Sequence[Row], dtype: str, caption: str, file: Path) -> Path:
    """Rate against N, a panel for each direction, with the rate of `copy_` as the floor."""
    directions = distinct(rows, "direction")
    names = [name for name in providers(rows) if standing(rows, name).measured]
    with _figure(file, f"{rows[0]['op']} of {rows[0]['rows']:,} rows, {dtype}", caption, 1, len(directions)) as axes:
        for axis, direction in zip(axes, directions, strict=True):
            for name in [COPY, *names]:
                line = [row for row in select(rows, provider=name, direction=direction) if row["gbps"]]
                _line(axis, name, [row["cols"] for row in line], [row["gbps"] for row in line])
                if name != COPY:
                    edges = [[row["gbps"] * row["ms"] / row[end] for row in line] for end in ("ms_80", "ms_20")]
                    axis.fill_between([row["cols"] for row in line], *edges, color=_style(name)[0], alpha=0.12, lw=0)
            axis.set(title=direction, xlabel="N, columns", ylim=(0, None))
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes[0].set_ylabel("useful traffic, GB/s")
        _legend(axes, [COPY, *names])
    return file


def _classes(rows: Sequence[Row], title: str, caption: str, file: Path) -> Path:
    """Share of `copy_`'s rate at every shape, a panel for each class."""
    groups = [group for group in CLASSES if select(rows, group=group.name)]
    names = [name for name in providers(rows) if standing(rows, name).measured]
    across = min(2, len(groups))
    with _figure(file, title, caption, -(-len(groups) // across), across, height=3.1) as axes:
        for axis, group in zip(axes, groups, strict=False):
            mine = select(rows, group=group.name)
            shapes = distinct(mine, "shape")
            for name in names:
                shares = {row["shape"]: row["share_of_copy"] for row in select(mine, provider=name)}
                _line(axis, name, range(len(shapes)), [shares.get(shape) or float("nan") for shape in shapes])
            axis.axhline(1, color=_INK, lw=0.9, ls=(0, (1, 2)), label=COPY)
            aim = group.aim(mine[0]["direction"])
            if aim is not None and aim != 1:
                axis.axhline(aim, color=_STYLES[OURS][0], lw=0.8, ls=(0, (4, 3)), alpha=0.7, label=_AIM)
            axis.set(title=group.title, xlim=(-0.4, len(shapes) - 0.6), ylabel="share of copy")
            axis.set_ylim(0, max(1.15, 1.05 * axis.dataLim.ymax))
            axis.set_xticks(
                range(len(shapes)), [_short(shape, shapes) for shape in shapes], rotation=35, ha="right", fontsize=8
            )
        for axis in axes[len(groups) :]:
            axis.set_axis_off()
        _legend(axes, [*names, COPY, _AIM], axes[len(groups)] if len(groups) < len(axes) else None)
    return file


def _overview(rows: Sequence[Row], caption: str, file: Path) -> Path:
    """Where each provider stands: its typical share in every class, a block for each direction and dtype."""
    from matplotlib import colormaps

    names, classes = providers(rows), [group for group in CLASSES if select(rows, group=group.name)]
    groups = [group.name for group in classes]
    legend = textwrap.fill(
        "; ".join(f"{group.name}: {group.title}" for group in classes), 60 * len(distinct(rows, "dtype"))
    )
    caption = f"{legend}\n{caption}"
    dtypes, directions = distinct(rows, "dtype"), distinct(rows, "direction")
    title = f"{rows[0]['op']}: typical share of copy by class of shapes, the worst below it, how many ran if not all"
    size = (0.72 * len(groups), 0.46 * len(names) + 0.7)
    blocks = [(way, kind) for way in directions for kind in dtypes]
    with _figure(file, title, caption, len(directions), len(dtypes), size[1], size[0]) as axes:
        for i, (axis, (direction, dtype)) in enumerate(zip(axes, blocks, strict=True)):
            axis.set(title=f"{direction}, {dtype}", xlim=(-0.5, len(groups) - 0.5), ylim=(len(names) - 0.5, -0.5))
            axis.grid(visible=False)
            axis.tick_params(length=0)
            axis.spines[:].set_visible(False)
            axis.set_xticks(range(len(groups)), groups, fontsize=9)
            axis.set_yticks(range(len(names)), names if i % len(dtypes) == 0 else [""] * len(names), fontsize=9)
            for tick in axis.get_yticklabels():
                tick.set_fontweight("bold" if tick.get_text() == OURS else "normal")
            mine = select(rows, direction=direction, dtype=dtype)
            for y, name in enumerate(names):
                for x, group in enumerate(groups):
                    _cell(axis, x, y, standing(mine, name, group=group), colormaps["BrBG"])
    return file


def _cell(axis: Any, x: int, y: int, found: Any, shade: Any) -> None:
    colour = "#f6f8fa" if found.typical is None else shade(min(0.95, 0.05 + 0.9 * found.typical))
    axis.add_patch(_rectangle(x, y, colour))
    if found.typical is None:
        axis.text(x, y, "none", ha="center", va="center", fontsize=7.5, color="#8c959f")
        return
    ink = "white" if found.typical < 0.22 or found.typical > 0.8 else _INK
    missing = "" if found.measured == found.points else f" {found.measured}/{found.points}"
    axis.text(x, y - 0.12, f"{found.typical:.2f}", ha="center", va="center", fontsize=9.5, color=ink)
    axis.text(x, y + 0.27, f"{found.worst:.2f}{missing}", ha="center", va="center", fontsize=6.5, color=ink)


def _rectangle(x: int, y: int, colour: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=colour, edgecolor="none")


def _host(rows: Sequence[Row], caption: str, file: Path) -> Path:
    """Microseconds that a call keeps the host busy."""
    panels = [("without gradient", False), ("with gradient", True)]
    with _figure(file, "Host time of a call on 8x128", caption, 1, 2, height=2.6) as axes:
        for axis, (title, grad) in zip(axes, panels, strict=True):
            mine = sorted((row for row in select(rows, grad=grad) if row["us"]), key=lambda row: -row["us"])
            names = [row["provider"] for row in mine]
            bars = axis.barh(names, [row["us"] for row in mine], color=[_style(name)[0] for name in names], height=0.65)
            axis.bar_label(bars, fmt="%.1f", padding=4, fontsize=9)
            axis.set(title=title, xlabel="microseconds")
            axis.grid(visible=False)
            axis.margins(x=0.15)
    return file


@contextmanager
def _figure(
    file: Path, title: str, caption: str, down: int, across: int, height: float = 3.6, width: float = 5.2
) -> Iterator[list[Any]]:
    """A figure of down x across panels with a title above and a caption below it, written to the file at the end."""
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


def _line(axis: Any, name: str, x: Sequence[float], y: Sequence[float]) -> None:
    if name == COPY:
        axis.plot(x, y, color=_INK, lw=1, ls=(0, (1, 2)), label=name)
        return
    colour, marker = _style(name)
    ours = name == OURS
    axis.plot(
        x, y, color=colour, marker=marker if len(x) <= 20 else None, markersize=4.5, label=name,
        lw=2.4 if ours else 1.4, alpha=1 if ours else 0.9, zorder=3 if ours else 2,
    )  # fmt: skip


def _legend(axes: Sequence[Any], names: Sequence[str], empty: Any = None) -> None:
    """Names the lines of all panels in one that is empty, or to the right of the last."""
    handles = {handle.get_label(): handle for axis in axes for handle in axis.get_lines()}
    found = [name for name in names if name in handles]
    place = {"loc": "center"} if empty else {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)}
    (empty or axes[-1]).legend([handles[name] for name in found], found, **place)


def _style(name: str) -> tuple[str, str]:
    return _STYLES.get(name, _OTHER)


def _short(shape: str, shapes: Sequence[str]) -> str:
    """The part of a shape that tells it from its neighbours: the width of a matrix, where no two are alike."""
    widths = {other.partition("x")[2] for other in shapes}
    if len(widths) == len(shapes) and all(other.count("x") == 1 and " dim" not in other for other in shapes):
        return shape.partition("x")[2]
    return shape.partition(" dim")[0]
