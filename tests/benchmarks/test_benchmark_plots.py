"""Tests the pictures of a run: what they show, and that they can be read at a width of 700 pixels."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import pytest

from benchmark_rows import make_document, result_row
from tridal.benchmarks import plots
from tridal.benchmarks.measuring import make_row
from tridal.benchmarks.providers import COPY, PROVIDERS
from tridal.benchmarks.results import Row
from tridal.benchmarks.timing import Timing
from tridal.benchmarks.workloads import SHAPE_CLASSES, SUITES, grid, make_workloads

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from matplotlib.text import Text

from tridal.benchmarks import plot_style
from tridal.benchmarks.plot_style import TIMES

PAGES = {"light": ["#ffffff"], "dark": ["#131416", "#0d1117"]}
"""Backgrounds of pages on the site and on GitHub."""


def make_pictures(*arguments: Any) -> dict[str, plot_style.Picture]:
    with plot_style.style():
        return {picture.name: picture for picture in plots.make_pictures(make_document(*arguments))}


def texts_of(figure: Figure) -> list[Text]:
    """The texts that the picture shows. matplotlib also has texts of ticks outside of the panels."""
    figure.draw_without_rendering()
    axes = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
    outside = [
        tick.label1
        for axis in axes
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    ]
    found = (text for text in figure.findobj(Text) if text.get_visible() and text.get_text())
    return [text for text in found if text not in outside]


def make_suite(suite: str, op: str, names: Sequence[str]) -> list[Row]:
    """Rows of a suite in which the providers' shares are close to each other, which makes their names crowded."""
    rows = []
    for workload in make_workloads([SHAPE_CLASSES[name] for name in SUITES[suite]], op, ["forward"], ["bfloat16"]):
        rows.append(result_row(COPY, 1, workload))
        rows += [result_row(name, 0.9 + 0.02 * index, workload) for index, name in enumerate(names)]
    for row in rows:
        if row["provider"] in ("quack", "FlagGems") and row["cols"] > 32_768:
            row |= {"ms": None, "share_of_copy": None, "gbps": None, "skipped": "too wide"}
    return rows


@pytest.mark.parametrize("names", [["tridal", "torch"], list(PROVIDERS)], ids=["two", "all"])
@pytest.mark.parametrize(
    ("suite", "op"), [("rows", "softmax"), ("hidden", "rms_norm"), ("vocabularies", "cross_entropy")]
)
def test_texts_of_a_suite_are_readable_and_do_not_overlap(suite: str, op: str, names: list[str]) -> None:
    pictures = make_pictures(make_suite(suite, op, names))
    assert set(pictures) == {"suite-bfloat16-forward"}
    check_texts(pictures["suite-bfloat16-forward"].figure)


def check_texts(figure: Figure) -> None:
    """Checks that all texts have at least 11 CSS pixels, are inside the picture, and do not overlap."""
    texts = texts_of(figure)
    boxes = [text.get_window_extent() for text in texts]
    assert figure.bbox.width == pytest.approx(700)
    for text, box in zip(texts, boxes, strict=True):
        assert text.get_fontsize() * figure.dpi / 72 >= 11, text
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width, text
        assert 0 <= box.y0 < box.y1 <= figure.bbox.height, text
    for (one, first), (other, second) in itertools.combinations(zip(texts, boxes, strict=True), 2):
        across = min(first.x1, second.x1) - max(first.x0, second.x0)
        down = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert min(across, down) <= 1.5, f"{one} overlaps {other}"


def test_picture_of_a_suite_labels_shapes_and_marks_unreliable_points() -> None:
    from matplotlib.collections import PathCollection

    classes = [SHAPE_CLASSES[name] for name in ("rows", "odd", "inner", "outer")]
    workloads = make_workloads(classes, "softmax", ["forward"], ["float32"])
    rows = [result_row("tridal", 0.9, workload) for workload in workloads]
    rows += [result_row("torch", 0.4, workload) for workload in workloads]
    rows[3]["share_noisy"] = True
    rows[-1] |= {"ms": None, "share_of_copy": None, "gbps": None}
    picture = make_pictures(rows)["suite-float32-forward"]
    first, second, third = picture.figure.axes
    labels = [
        label.get_text().replace(f"\n{TIMES}", "x") for axis in (first, second) for label in axis.get_xticklabels()
    ]
    assert labels[:3] == ["2Mx32", "1Mx64", "512kx128"]
    assert labels[-1] == "32kx4k slice"
    assert "64x4k" in third.get_xticklabels()[0].get_text().replace(f"\n{TIMES}", "x").replace(TIMES, "x")
    assert len(third.get_xticklabels()) == 6, "two classes of three shapes share a panel"
    key = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    assert key == ["tridal", "PyTorch", "copy"]
    hollow = [found for found in first.collections if isinstance(found, PathCollection)]
    assert [found.get_offsets().tolist() for found in hollow] == [[[first.get_xticks()[3], pytest.approx(0.9)]]]
    assert picture.description.endswith(
        f"geometric mean tridal 0.90, PyTorch 0.40 ({len(workloads) - 1} of {len(workloads)} shapes)."
    )


def test_pictures_of_a_cpu_have_rates_on_one_scale() -> None:
    classes = [SHAPE_CLASSES["rows"], SHAPE_CLASSES["few"]]
    first, second = make_workloads(classes, "softmax", ["forward"], ["float32"])[::13]
    times = {COPY: Timing(1.0, 1.0, 1.0), "tridal": Timing(99.0, 99.0, 99.0)}
    rows = [make_row(first, name, 2, times[COPY], times[name], accelerated=False) for name in times]
    rows += [make_row(second, COPY, 2, times[COPY], times[COPY], accelerated=False)]
    pictures = make_pictures(rows, "cpu")
    assert list(pictures) == ["suite-float32-forward"]
    figure = pictures["suite-float32-forward"].figure
    assert {axis.get_yscale() for axis in figure.axes} == {"log"}
    assert "useful traffic in GB/s, by shape" in [text.get_text() for text in texts_of(figure)]
    check_texts(figure)


@pytest.mark.parametrize("widths", [(8, 13), tuple(range(256, 12_673, 128))])
def test_picture_of_a_grid_has_a_readable_panel_per_direction(widths: tuple[int, ...]) -> None:
    rows = []
    for workload in make_workloads([grid(4096, widths)], "softmax", ["forward", "backward"], ["float32"]):
        rows += [result_row(name, share, workload) for name, share in ((COPY, 1), ("tridal", 0.99), ("torch", 0.5))]
    picture = make_pictures(rows)["grid-float32"]
    check_texts(picture.figure)
    assert [axis.get_title(loc="left") for axis in picture.figure.axes] == ["forward", "backward"]
    assert [text.get_text() for text in picture.figure.legends[0].get_texts()] == ["tridal", "PyTorch", "copy"]


def test_picture_of_host_times_has_a_bar_with_its_value_per_provider() -> None:
    document = make_document([])
    for grad, times in ((False, (10.5, 12.0)), (True, (12.5, 19.2))):
        for name, us in zip(("torch", "tridal"), times, strict=True):
            document["host"].append(
                {"provider": name, "grad": grad, "us": us, "us_20": us, "us_80": us + 1, "noisy": grad, "skipped": None}
            )
    with plot_style.style():
        (picture,) = plots.make_pictures(document)
    check_texts(picture.figure)
    left, right = picture.figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["PyTorch", "tridal"]
    assert sorted(text.get_text() for text in right.texts) == ["12.5", "19.2"]
    assert [bar.get_facecolor()[3] for bar in right.patches] == [0, 0], "noisy times are hollow"
    assert picture.description == (
        f"Host time of softmax on 8{TIMES}128 in microseconds: "
        "without gradient PyTorch 10.5, tridal 12.0; with gradient PyTorch 12.5, tridal 19.2."
    )


def luminance(color: str) -> float:
    """The relative luminance of a color, as in the Web Content Accessibility Guidelines."""
    values = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", PAGES)
def test_colors_of_lines_and_texts_have_enough_contrast(theme: str) -> None:
    texts = [plot_style.QUIET, plot_style.INK, *(plot_style.look_of(name).light for name in [COPY, *PROVIDERS])]
    for color in texts:
        color = plot_style.DARK[color] if theme == "dark" else color
        for page in PAGES[theme]:
            low, high = sorted((luminance(color), luminance(page)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, f"{color} on {page}"


def test_svg_for_a_dark_page_has_the_same_texts_in_other_colors() -> None:
    workload = make_workloads([SHAPE_CLASSES["small"]], "softmax", ["forward"], ["float32"])[0]
    rows = [result_row(name, 0.9, workload) for name in ("tridal", "torch")]
    with plot_style.style():
        first, second = (
            plot_style.svg_texts(figure) for figure in (make_pictures(rows)["suite-float32-forward"].figure,) * 2
        )
    light, dark = first
    assert first == second, "a picture has no date, and no random names"
    assert re.findall(r"<text.*?>(.*?)</text>", light) == re.findall(r"<text.*?>(.*?)</text>", dark)
    assert ">PyTorch</text>" in light
    assert "DejaVu" not in light
    assert set(re.findall("#[0-9a-f]{6}", dark)) <= set(plot_style.DARK.values())
    assert f"fill: {plot_style.PAPER}" in light
    assert "fill: none" in dark
