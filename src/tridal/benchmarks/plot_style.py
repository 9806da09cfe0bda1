"""The style of all pictures: sizes in CSS pixels, colors and names of providers, PNG and SVG files.

Pictures are drawn for a light page. `svg_texts` also returns them in the colors for a dark page. Needs matplotlib.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tridal.benchmarks.providers import COPY, OURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 700  # of a picture, in CSS pixels
TITLE, TEXT, SMALL = 16.0, 12.5, 11.5  # font sizes in CSS pixels
INK, QUIET, FAINT, PAPER = "#1f2328", "#59636e", "#d8dee4", "#ffffff"
PIXEL = 0.75  # of a point, in which matplotlib measures fonts, lines and markers
TIMES = "\N{MULTIPLICATION SIGN}"
COPY_LINE: Mapping[str, Any] = {"color": INK, "lw": 0.9, "ls": (0, (1, 2)), "zorder": 2}
"""The properties of the line for the rate of a copy."""
LEFT, RIGHT = 44, 24  # space beside a panel, in CSS pixels
PANEL_WIDTH = WIDTH - LEFT - RIGHT
_ABOVE = 30  # space above each row of panels, in CSS pixels
_KEYS_PER_LINE = 6
_INCH = 96  # CSS pixels
_EDGE = 10  # space at the borders of a picture, in CSS pixels
_LINE = 1.35  # distance of two lines of text, in font sizes
_CAPTION_LETTERS = 104  # per line
LETTER = 7.4  # width of a letter of SMALL text, in CSS pixels


@dataclass(frozen=True, slots=True)
class Look:
    """The colors of a provider on a light and on a dark page, and its marker."""

    light: str
    dark: str
    marker: str = "o"


_LOOKS: Mapping[str, Look] = {
    OURS: Look("#2563eb", "#5b9dff"),
    COPY: Look(INK, "#e6edf3", "_"),
    "torch": Look("#7d2e22", "#d9765d", "s"),
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
_SAME_LOOK = {"reference": "torch"}
_TITLES = {"torch": "PyTorch"}
_LAYOUT_FONT = "DejaVu Sans"
_FONTS = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"
"""Fonts of SVG files. None of them is wider than the font with which pictures are laid out."""
_RC = {
    "font.family": _LAYOUT_FONT, "font.size": TEXT * PIXEL, "text.color": INK, "axes.edgecolor": FAINT,
    "axes.labelcolor": QUIET, "xtick.labelcolor": QUIET, "ytick.labelcolor": QUIET, "xtick.labelsize": SMALL * PIXEL,
    "ytick.labelsize": SMALL * PIXEL, "xtick.color": FAINT, "ytick.color": FAINT, "xtick.major.size": 0,
    "ytick.major.size": 0, "xtick.minor.size": 0, "ytick.minor.size": 0, "axes.titlesize": TEXT * PIXEL,
    "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlecolor": INK, "axes.titlepad": 6,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.grid": True,
    "axes.grid.axis": "y", "grid.color": FAINT, "grid.linewidth": 0.6, "axes.axisbelow": True, "axes.facecolor": "none",
    "legend.frameon": False, "figure.dpi": _INCH, "figure.facecolor": PAPER, "svg.fonttype": "none",
    "svg.hashsalt": "tridal",
}  # fmt: skip


def style() -> AbstractContextManager[None]:
    """Returns a context in which matplotlib draws and saves pictures in this style."""
    from matplotlib import rc_context

    return rc_context(_RC)


def title_of(provider: str) -> str:
    """Returns the name of a provider as its users know it."""
    return _TITLES.get(provider, provider)


def look_of(provider: str) -> Look:
    """Returns the colors and the marker of a provider."""
    return _LOOKS.get(_SAME_LOOK.get(provider, provider), _OTHER)


def emphasis(provider: str) -> dict[str, Any]:
    """Returns the properties of a text with a provider's name or value. Those of tridal are bold."""
    return {"color": look_of(provider).light, "fontweight": "bold" if provider == OURS else "normal"}


def make_figure(
    title: str,
    subtitle: str,
    caption: str,
    sizes: Sequence[tuple[float, float]],
    *,
    columns: int = 1,
    left: float = LEFT,
    right: float = RIGHT,
    key: Sequence[str] = (),
) -> tuple[Figure, list[Any]]:
    """Returns a figure, and its panels row by row. All sizes are in CSS pixels.

    `sizes` are the height of each row of panels and the space below it. `left` is the space to the left of all panels,
    `right` that to the right of each panel. `key` are the providers whose markers are explained below the subtitle.
    """
    from matplotlib.figure import Figure

    lines = textwrap.wrap(caption, _CAPTION_LETTERS)
    top = _EDGE + _LINE * (TITLE + TEXT)
    key_top, top = top, top + 22 * -(-len(key) // _KEYS_PER_LINE)
    total = top + sum(_ABOVE + height + below for height, below in sizes) + _LINE * SMALL * len(lines) + 2 * _EDGE
    figure = Figure(figsize=(WIDTH / _INCH, total / _INCH))

    def write(text: str, down: float, size: float, **look: Any) -> None:
        figure.text(_EDGE / WIDTH, 1 - down / total, text, fontsize=size * PIXEL, va="top", **look)

    write(title, _EDGE, TITLE, fontweight="bold")
    write(subtitle, _EDGE + _LINE * TITLE, TEXT, color=QUIET)
    for index, line in enumerate(lines):
        write(line, total - _EDGE - _LINE * SMALL * (len(lines) - index), SMALL, color=QUIET)
    width, axes = (WIDTH - left) / columns, []
    for height, below in sizes:
        top += _ABOVE
        for column in range(columns):
            box = (left + column * width, total - top - height, width - right, height)
            axes.append(figure.add_axes((box[0] / WIDTH, box[1] / total, box[2] / WIDTH, box[3] / total)))
        top += height + below
    if key:
        _add_key(figure, key, key_top)
    return figure, axes


def _add_key(figure: Figure, names: Sequence[str], top: float) -> None:
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], ls="", marker=look_of(name).marker, color=look_of(name).light, ms=5) for name in names]
    key = figure.legend(
        marks, [title_of(name) for name in names], loc="upper left", ncols=_KEYS_PER_LINE, borderpad=0, borderaxespad=0,
        handlelength=1, handletextpad=0.2, columnspacing=1.2, fontsize=TEXT * PIXEL,
        bbox_to_anchor=(7 / figure.bbox.width, 1 - (top + 7) / figure.bbox.height),
    )  # fmt: skip
    for name, text in zip(names, key.get_texts(), strict=True):
        text.set(**emphasis(name))


class Picture(NamedTuple):
    """A picture: the name of its file, a description for readers who do not see it, and a function that draws it."""

    name: str
    description: str
    draw: Callable[[], Figure]


def save_png(figure: Figure, folder: Path, name: str) -> Path:
    """Writes a picture as NAME.png for a light page. Returns the file."""
    file = folder / f"{name}.png"
    figure.savefig(file, dpi=2 * _INCH, metadata={"Software": None})
    return file


def svg_texts(figure: Figure) -> tuple[str, str]:
    """Returns a picture as SVG for a light page, and for a dark page with a transparent background.

    The texts depend only on the figure and on the version of matplotlib.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue().replace(f" font-family: '{_LAYOUT_FONT}';", "")
    text = text.replace('<style type="text/css">', f'<style type="text/css">text{{font-family: {_FONTS}}} ', 1)
    text = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", text)
    dark = re.sub(r"#[0-9a-f]{6}", lambda color: DARK.get(color[0], color[0]), text.replace(PAPER, "none", 1))
    return text, dark
