"""Draws the diagrams of the documentation as SVG files beside this script: `python docs/diagrams/draw.py`.

The files have a light and a dark color scheme. They are narrow, so that their text is readable on a phone.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH = 440
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
  .title { font-weight: 600 } .small { font-size: 12px } .left { text-anchor: start }
  .page { fill: #ffffff } .plain { fill: #f3f4f6 } .op { fill: #dbeafe } .schedule { fill: #dcfce7 }
  .backend { fill: #fef3c7 } .p0 { fill: #93c5fd } .p1 { fill: #86efac } .p2 { fill: #fcd34d } .p3 { fill: #f9a8d4 }
  rect { stroke: #6b7280 } .page { stroke: none } line { stroke: #6b7280; stroke-width: 1.5 } path { fill: #6b7280 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .page { fill: #131416 } .plain { fill: #272b33 } .op { fill: #1e3a5f }
    .schedule { fill: #14432a } .backend { fill: #4a3a10 } .p0 { fill: #1d4ed8 } .p1 { fill: #15803d }
    .p2 { fill: #a16207 } .p3 { fill: #9d174d }
    rect, line { stroke: #9ca3af } .page { stroke: none } path { fill: #9ca3af }
  }
"""


class Picture:
    """An SVG picture of a fixed width. Coordinates are pixels from the top left corner."""

    def __init__(self, title: str, height: int) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'role="img"><title>{escape(title)}</title><style>{STYLE}</style>',
            f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
        ]

    def box(self, x: float, y: float, width: float, height: float, kind: str, *lines: str) -> None:
        """Draws a box with lines of text. A line that begins with "#" is a title."""
        self.parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="4"/>')
        top = y + height / 2 - 17 * (len(lines) - 1) / 2 + 4.5
        for i, line in enumerate(lines):
            self.text(x + width / 2, top + 17 * i, line.lstrip("# "), "title" if line.startswith("#") else "small")

    def text(self, x: float, y: float, text: str, kind: str = "small") -> None:
        """Writes a line of text. It is centred at x, or begins there if its kind is "left"."""
        self.parts.append(f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>')

    def arrow(self, x: float, y: float, to_y: float) -> None:
        """Draws a vertical arrow."""
        tip = 6 if to_y > y else -6
        self.parts.append(f'<line x1="{x}" y1="{y}" x2="{x}" y2="{to_y - tip}"/>')
        self.parts.append(f'<path d="M{x - 4} {to_y - tip} h8 l-4 {tip} z"/>')

    def svg(self) -> str:
        """Returns the text of the SVG file."""
        return "\n".join([*self.parts, "</svg>", ""])


def architecture() -> str:
    """A backend makes a plan, whose schedule writes a kernel of the op, which is launched on the tensor's device."""
    picture = Picture(
        "A backend makes a launch plan. The plan chooses the schedule, which writes the kernel of the op. The plan's "
        "numbers are compiled into the kernel, which is launched on the device of the tensor",
        540,
    )
    picture.box(120, 14, 200, 34, "plain", "# tridal.softmax(x)")
    picture.parts.append('<line x1="220" y1="48" x2="220" y2="60"/>')
    picture.parts.append('<line x1="79" y1="60" x2="290" y2="60"/>')
    for x, top, bottom in (
        (79, 60, 76),
        (290, 60, 76),
        (290, 160, 188),
        (290, 254, 282),
        (79, 344, 372),
        (290, 344, 372),
    ):
        picture.arrow(x, top, bottom)
    names = ("softmax", "RMSNorm", "LayerNorm", "cross-entropy", "SwiGLU", "rotary", "your own")
    picture.box(14, 76, 130, 268, "op", "# op", "the math", "of one row", "", *names)
    for y, height, kind, lines in (
        (76, 84, "backend", ("# backend", "the numbers of a device", "cuda, rocm, xpu, npu", "interpreter, your own")),
        (188, 66, "backend", ("# launch plan", "schedule, tile, programs", "and the reason in words")),
        (282, 62, "schedule", ("# schedule", "whole_row, cooperative or column_loop", "how programs loop over rows")),
    ):
        picture.box(155, y, 271, height, kind, *lines)
    for y, text in ((178, "plans the shape"), (272, "chooses"), (362, "writes")):
        picture.text(300, y, text, "small left")
    picture.box(14, 372, 412, 48, "plain", "# kernel", "one Triton source; the numbers of the plan are compiled in")
    picture.arrow(220, 420, 444)
    picture.box(14, 444, 412, 34, "plain", "# launch on the device and the stream of x")
    for i, name in enumerate(("NVIDIA", "AMD", "Intel", "Ascend", "CPU")):
        picture.arrow(52 + 84 * i, 478, 496)
        picture.box(14 + 84 * i, 496, 76, 30, "plain", name)
    return picture.svg()


def whole_row() -> str:
    """Three persistent programs compute six rows."""
    picture = Picture("whole_row: each program computes whole rows", 214)
    for row in range(6):
        kind = f"p{row % 3}"
        picture.text(48, 35 + 26 * row, f"row {row}")
        picture.box(84, 18 + 26 * row, 220, 24, kind, f"program {row % 3}")
        picture.text(366, 35 + 26 * row, "first tile" if row < 3 else "second tile")
    picture.text(WIDTH / 2, 198, "load, maximum, sum, store: one read and one write")
    return picture.svg()


def cooperative() -> str:
    """Four programs compute one row."""
    picture = Picture("cooperative: the programs of a row exchange their statistics", 262)
    picture.text(WIDTH / 2, 24, "one row")
    for i in range(4):
        x = 14 + 103 * i
        picture.box(x, 34, 103, 28, f"p{i}", f"column block {i}")
        picture.arrow(x + 51.5, 62, 82)
        picture.box(x + 5, 82, 93, 46, f"p{i}", f"# program {i}", "max, sum")
        picture.arrow(x + 51.5, 128, 148)
        picture.arrow(x + 51.5, 178, 198)
        picture.box(x, 198, 103, 28, f"p{i}", "results")
    picture.box(14, 148, 412, 30, "plain", "exchange: all programs read the statistics of all")
    picture.text(WIDTH / 2, 248, "each element stays on its core: one read and one write")
    return picture.svg()


def column_loop() -> str:
    """One program loops twice over the column blocks of a row."""
    picture = Picture("column_loop: one program loops over the column blocks of a row, twice", 198)
    picture.text(WIDTH / 2, 24, "one row, one program")
    for y, kind, name, steps in ((34, "p0", "first loop: maximum and sum", 0), (104, "p0", "second loop: results", 4)):
        for i in range(4):
            picture.box(14 + 103 * i, y, 103, 30, kind, f"step {steps + i + 1}")
        picture.text(WIDTH / 2, y + 48, name)
    picture.text(WIDTH / 2, 184, "the second loop loads again: two reads and one write")
    return picture.svg()


def logo(*colors: str) -> str:
    """The logo: a wave for each of the three parts. The waves are thick, because the site's icon has 16 pixels."""
    waves = "".join(f'<path d="M4 {7 + 9 * i} q6 -7 12 0 t12 0" stroke="{color}"/>' for i, color in enumerate(colors))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32" width="32" height="32" role="img">'
        f'<title>tridal</title><g fill="none" stroke-width="5" stroke-linecap="round">{waves}</g></svg>\n'
    )


DRAWINGS = {
    "architecture": architecture,
    "whole-row": whole_row,
    "cooperative": cooperative,
    "column-loop": column_loop,
    "logo": lambda: logo("#2563eb", "#16a34a", "#ca8a04"),
    "logo-dark": lambda: logo("#60a5fa", "#4ade80", "#fbbf24"),
}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        Path(__file__).with_name(f"{name}.svg").write_text(draw())
