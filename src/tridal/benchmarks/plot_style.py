"""The style of all pictures: colors of providers, a figure with a title, a key and a caption, and its files.

Pictures are drawn for a light page. `svg_texts` also returns them in the colors for a dark page. Needs matplotlib.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tridal.benchmarks.providers import COPY, OURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, QUIET, FAINT, PAPER = "#1f2328", "#59636e", "#d8dee4", "#ffffff"
TITLE, TEXT, SMALL = 12.0, 9.4, 8.6  # font sizes in points
COPY_LINE: Mapping[str, Any] = {"color": INK, "lw": 0.9, "ls": (0, (1, 2)), "zorder": 2}
"""The properties of the line for the rate of a copy."""
_WIDTH = 7.3  # inches
_DPI = 96
_CAPTION_LETTERS = 120  # per line
_FONT = "DejaVu Sans"
_PAGE_FONTS = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"
"""Fonts of SVG files. None of them is wider than the font with which pictures are laid out."""


class Look(NamedTuple):
    """The colors of a provider on a light and on a dark page, and its marker."""

    light: str
    dark: str
    marker: str = "o"


_LOOKS: Mapping[str, Look] = {
    OURS: Look("#2563eb", "#5b9dff"),
    COPY: Look(INK, "#e6edf3", "_"),
    "torch": Look("#7d2e22", "#d9765d", "s"),
    "reference": Look("#7d2e22", "#d9765d", "s"),
    "torch.compile": Look("#2a7d6d", "#63b59d", "^"),
    "Liger-Kernel": Look("#9b59a0", "#b08bd0", "D"),
    "FlagGems": Look("#80701c", "#d3b45f", "v"),
    "quack": Look("#264a60", "#a3c9dc", "P"),
    "torch.jit.script": Look("#7a5a48", "#b8957d", "h"),
}
_OTHER = Look("#6a737d", "#8b949e", "X")
DARK: Mapping[str, str] = {
    **{look.light: look.dark for look in (*_LOOKS.values(), _OTHER)},
    QUIET: "#9198a1", FAINT: "#30363d", PAPER: "#0f1216",
}  # fmt: skip
"""The color on a dark page for each color of a picture."""
_RC = {
    "font.family": _FONT, "font.size": TEXT, "text.color": INK, "axes.edgecolor": FAINT, "axes.labelcolor": QUIET,
    "xtick.labelcolor": QUIET, "ytick.labelcolor": QUIET, "xtick.labelsize": SMALL, "ytick.labelsize": SMALL,
    "xtick.major.size": 0, "ytick.major.size": 0, "xtick.minor.size": 0, "ytick.minor.size": 0,
    "axes.titlesize": TEXT, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlecolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.grid": True,
    "axes.grid.axis": "y", "grid.color": FAINT, "grid.linewidth": 0.6, "axes.axisbelow": True, "axes.facecolor": "none",
    "legend.frameon": False, "figure.dpi": _DPI, "figure.facecolor": PAPER, "svg.fonttype": "none",
    "svg.hashsalt": "tridal",
}  # fmt: skip


def style() -> AbstractContextManager[None]:
    """Lets matplotlib draw and save pictures in this style, in a context."""
    from matplotlib import rc_context

    return rc_context(_RC)


def title_of(provider: str) -> str:
    """Names a provider as its users know it."""
    return "PyTorch" if provider == "torch" else provider


def look_of(provider: str) -> Look:
    """Looks up the colors and the marker of a provider."""
    return _LOOKS.get(provider, _OTHER)


def emphasis(provider: str) -> dict[str, Any]:
    """Makes a text bold if it has the name of tridal, or a value of it."""
    return {"color": look_of(provider).light, "fontweight": "bold" if provider == OURS else "normal"}


def make_figure(
    title: str, subtitle: str, caption: str, heights: Sequence[float], columns: int = 1, key: Sequence[str] = ()
) -> tuple[Figure, list[Any]]:
    """Makes a figure with rows of panels of these heights in inches. The panels are given row by row.

    `key` are the providers whose markers are explained below the subtitle.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    text = textwrap.fill(caption, _CAPTION_LETTERS)
    above = 0.35 * bool(title) + 0.25 * (1 + -(-len(key) // 6))
    figure = Figure((_WIDTH, sum(heights) + above + 0.16 * (1 + text.count("\n"))), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=TITLE, fontweight="bold")
    figure.supxlabel(text, x=0.01, ha="left", fontsize=SMALL, color=QUIET)
    marks = [Line2D([], [], ls="", marker=look_of(name).marker, color=look_of(name).light, ms=5) for name in key]
    shown = figure.legend(
        marks, list(map(title_of, key)), title=f"\n{subtitle}", alignment="left", loc="outside upper left", ncols=6,
        handletextpad=0.2, columnspacing=1.2,
    )  # fmt: skip
    shown.get_title().set_color(QUIET)
    for name, label in zip(key, shown.get_texts(), strict=True):
        label.set(**emphasis(name))
    axes = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    return figure, [axis for row in axes for axis in row]


class Picture(NamedTuple):
    """A picture: the name of its file, a description for readers who do not see it, and a function that draws it."""

    name: str
    description: str
    draw: Callable[[], Figure]


def save_png(figure: Figure, folder: Path, name: str) -> Path:
    """Writes a picture as NAME.png for a light page. Returns the file."""
    file = folder / f"{name}.png"
    figure.savefig(file, dpi=2 * _DPI, metadata={"Software": None})
    return file


def svg_texts(figure: Figure) -> tuple[str, str]:
    """Prints a picture as SVG for a light page, and for a dark page with a transparent background.

    The texts depend only on the figure and on the version of matplotlib.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue().replace(f" font-family: '{_FONT}';", "")
    text = text.replace('<style type="text/css">', f'<style type="text/css">text{{font-family: {_PAGE_FONTS}}} ', 1)
    dark = re.sub(r"#[0-9a-f]{6}", lambda color: DARK.get(color[0], color[0]), text.replace(PAPER, "none", 1))
    return text, dark
