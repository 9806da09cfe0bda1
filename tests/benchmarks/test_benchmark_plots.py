"""Tests the pictures of a run: which there are, and what a reader could misread."""

from __future__ import annotations

import re
from typing import Any

import pytest

from benchmark_rows import make_document, result_row
from tridal.benchmarks import plots
from tridal.benchmarks.providers import COPY
from tridal.benchmarks.workloads import SHAPE_CLASSES, grid, make_workloads

pytest.importorskip("matplotlib")

from matplotlib.collections import PathCollection

from tridal.benchmarks import plot_style


def make_pictures(*arguments: Any) -> dict[str, plot_style.Picture]:
    return {picture.name: picture for picture in plots.make_pictures(make_document(*arguments))}


def test_unreliable_points_are_hollow_and_the_description_has_means() -> None:
    workloads = make_workloads([SHAPE_CLASSES["rows"], SHAPE_CLASSES["inner"]], "softmax", ["forward"], ["float32"])
    rows = [result_row("tridal", 0.9, workload) for workload in workloads]
    rows += [result_row("torch", 0.4, workload) for workload in workloads]
    rows[3]["share_noisy"] = True
    rows[-1] |= {"ms": None, "share_of_copy": None, "gbps": None}
    picture = make_pictures(rows)["suite-float32-forward"]
    first = picture.draw().axes[0]
    hollow = [found for found in first.collections if isinstance(found, PathCollection)]
    assert [found.get_offsets().tolist() for found in hollow] == [[[first.get_xticks()[3], pytest.approx(0.9)]]]
    count = len(workloads)
    assert f"geometric mean tridal 0.90, PyTorch 0.40 ({count - 1} of {count} shapes)." in picture.description


def test_picture_of_a_grid_has_a_panel_per_direction_and_a_dark_version_with_the_same_texts() -> None:
    rows = []
    for workload in make_workloads([grid(4096, (8, 13))], "softmax", ["forward", "backward"], ["float32"]):
        rows += [result_row(name, share, workload) for name, share in ((COPY, 1), ("tridal", 0.99), ("torch", 0.5))]
    with plot_style.style():
        figure = make_pictures(rows)["grid-float32"].draw()
        light, dark = plot_style.svg_texts(figure)
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["forward", "backward"]
    assert re.findall(r"<text.*?>(.*?)</text>", light) == re.findall(r"<text.*?>(.*?)</text>", dark)
    assert set(re.findall("#[0-9a-f]{6}", dark)) <= set(plot_style.DARK.values())
