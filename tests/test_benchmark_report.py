"""Tests of the reports of benchmarks: summaries, tables, marks of unreliable values, and pictures."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from tridal.benchmarks import plots, report
from tridal.benchmarks.measuring import make_row
from tridal.benchmarks.op_benchmarks import OP_BENCHMARKS, benchmark_of
from tridal.benchmarks.providers import COPY
from tridal.benchmarks.results import Row
from tridal.benchmarks.timing import Timing
from tridal.benchmarks.workloads import SHAPE_CLASSES, SUITES, Workload, make_workloads


def result_row(provider: str, share: float, workload: Workload) -> Row:
    """Returns a row in which a provider reaches a share of `copy_`'s rate."""
    passes = benchmark_of(workload.op).passes[workload.direction]
    ms = 1.0 if provider == COPY else passes / 2 / share
    return make_row(workload, provider, passes, Timing(1.0, 0.99, 1.01), Timing(ms, ms, ms))


def make_document(rows: list[Row], device: str = "x:0") -> dict[str, Any]:
    """Returns the document of a run with these rows."""
    machine = {"name": "A GPU", "device": device, "backend": None, "interpreted": False, "python": "3", "torch": "2"}
    return {
        "measurements": rows, "host": [], "machine": {**machine, "triton": "3", "tridal": "0"}, "op": "softmax",
        "providers": {"quack": "0.6"}, "command": "tridal bench", "date": "now", "interrupted": False,
        "aims": OP_BENCHMARKS["softmax"].aims, "passes": {"forward": 2, "backward": 3},
    }  # fmt: skip


def test_mean_share_does_not_count_skipped_workloads() -> None:
    first = Workload("small", "softmax", "forward", "float32", (4096, 256))
    second = Workload("small", "softmax", "forward", "float32", (4096, 512))
    rows = [result_row("torch", 0.5, first), result_row("torch", 0.8, second)]
    rows += [{**rows[0], "ms": None, "share_of_copy": None, "skipped": "no", "shape": "third"}]
    shares = report.shares(rows, provider="torch", group="small")
    assert shares == pytest.approx([0.5, 0.8])
    assert report.geometric_mean(shares) == pytest.approx(math.sqrt(0.4))
    assert report.geometric_mean(report.shares(rows, provider="naive")) is None


def test_shortfalls_are_missed_aims_and_faster_peers() -> None:
    first, second = make_workloads([SHAPE_CLASSES["rows"]], "softmax", ["forward"], ["float32"])[:2]
    single = make_workloads([SHAPE_CLASSES["few"]], "softmax", ["backward"], ["float32"])[0]
    rows = [result_row("tridal", 0.99, first), result_row("torch", 1.2, first), result_row("tridal", 0.5, second)]
    rows += [result_row("tridal", 0.9, single), result_row("torch", 0.91, single), result_row("naive", 0.3, single)]
    lines = list(report.shortfalls(rows, OP_BENCHMARKS["softmax"].aims))
    expected = [f"rows: {second.label} float32 forward: 0.50 of copy, the aim is 0.97"]
    assert lines == expected, "a peer that is faster by less than noise counts as equal"
    rows.append(result_row("quack", 0.95, single))
    lines = list(report.shortfalls(rows, OP_BENCHMARKS["softmax"].aims))
    assert lines == [*expected, f"few: {single.label} float32 backward: 0.90 of copy, quack is 0.95"]


def test_providers_that_were_always_skipped_come_last() -> None:
    workload = Workload("small", "softmax", "forward", "float32", (4096, 256))
    absent = {**result_row("quack", 1, workload), "ms": None, "share_of_copy": None}
    rows = [result_row(COPY, 1, workload), absent, result_row("tridal", 1, workload)]
    assert report.providers(rows) == ["tridal", "quack"]
    assert report.providers(rows, skipped=False) == ["tridal"]


def test_markdown_has_shares_shortfalls_and_skip_reasons() -> None:
    workload = Workload("few", "softmax", "forward", "float32", (1, 32_768))
    rows = [result_row(COPY, 1, workload), result_row("tridal", 0.5, workload)]
    rows.append(
        {**result_row("quack", 1, workload), "ms": None, "share_of_copy": None, "gbps": None, "skipped": "refused"}
    )
    text = report.markdown(make_document(rows), [])
    assert "A GPU (`x:0`), useful traffic, L2 flushed between calls" in text
    assert "| 1x32768 | 0.50 | - |" in text
    assert "- few: 1x32768 float32 forward: 0.50 of copy, the aim is 0.80" in text
    assert "- quack (1): refused" in text
    assert "- quack 0.6" in text


def test_numbers_are_rounded_by_column() -> None:
    assert report.number(None, "gbps") == "-"
    assert report.number(4123.4, "gbps") == "4,123"
    assert report.number(41.234, "gbps") == "41.2"
    assert report.number(0.9712, "share_of_copy") == "0.97"


def test_table_shows_the_spread_and_marks_noisy_values() -> None:
    workload = Workload("grid", "softmax", "forward", "float32", (1000, 1000))
    copy = Timing(1.0, 1.0, 1.0)
    rows = [make_row(workload, COPY, 2, copy, copy), make_row(workload, "x", 2, copy, Timing(2.0, 1.6, 4.0))]
    _, [line] = report.shape_table(rows, [COPY, "x"], "gbps")
    assert line == ["1000x1000", "8 (8-8)", "~4 (2-5)"]
    _, [line] = report.shape_table(rows, ["x"], "share_of_copy")
    assert line == ["1000x1000", "~0.50"]
    expected = "~ is unreliable: the 20% and 80% quantiles are further apart than 5% of the median + 1 us"
    assert expected in report.describe_noise(make_document(rows))
    assert report.describe_noise(make_document(rows[:1])) == ""


def test_impossible_share_is_marked_and_not_part_of_the_mean() -> None:
    workload = Workload("rows", "softmax", "forward", "float32", (1000, 1000))
    rows = [result_row("x", 0.9, workload), result_row("x", 527.0, replace(workload, shape=(9, 9)))]
    _, lines = report.shape_table(rows, ["x"], "share_of_copy")
    assert [line[1] for line in lines] == ["0.90", "~527.00"]
    _, [line] = report.class_table(rows, ["x"])
    assert line[-1] == "~0.90"


def test_report_of_a_cpu_has_rates_and_neither_shares_nor_aims() -> None:
    workload, one_ms = Workload("rows", "softmax", "forward", "float32", (1000, 1000)), Timing(1.0, 1.0, 1.0)
    rows = [make_row(workload, name, 2, one_ms, one_ms, accelerated=False) for name in (COPY, "tridal")]
    text = report.markdown(make_document(rows, "cpu"), [])
    assert "a CPU, where torch computes tridal's tensors; shares of copy and aims are left out" in text
    assert "GB/s of useful traffic" in text
    assert not {"share of copy", "Below the aim", "0.97"} & set(re.findall("share of copy\n|Below the aim|0.97", text))
    assert report.class_table(rows, [COPY, "tridal"])[1] == [["rows", "float32", "forward", "8", "8"]]
    assert not list(report.shortfalls(rows, OP_BENCHMARKS["softmax"].aims))


def test_overview_shows_mean_and_worst_share_and_number_of_measured_workloads() -> None:
    pytest.importorskip("matplotlib")
    workloads = make_workloads([SHAPE_CLASSES["small"]], "softmax", ["forward"], ["float32"])[:3]
    rows = [result_row("torch", share, workload) for share, workload in zip((0.5, 0.8, 1), workloads, strict=True)]
    rows[2] |= {"ms": None, "share_of_copy": None, "gbps": None}
    rows += [{**row, "provider": "naive", "ms": None, "share_of_copy": None, "gbps": None} for row in rows]
    figure = dict(plots.make_figures(make_document(rows)))["overview"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.63", "0.50 2/3", "none"]


def test_names_of_classes_in_the_overview_do_not_overlap() -> None:
    pytest.importorskip("matplotlib")
    classes = [SHAPE_CLASSES[name] for name in SUITES["hidden"]]
    workloads = make_workloads(classes, "rms_norm", ["forward"], ["float32", "bfloat16"])
    figure = dict(plots.make_figures(make_document([result_row("tridal", 0.9, one) for one in workloads])))["overview"]
    figure.draw_without_rendering()
    for axis in figure.axes:
        labels = [label.get_window_extent() for label in axis.get_xticklabels()]
        assert len(labels) == len(classes)
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(labels))


def test_picture_of_two_classes_names_their_shapes_and_marks_unreliable_points() -> None:
    collections = pytest.importorskip("matplotlib.collections")
    workloads = make_workloads([SHAPE_CLASSES["rows"], SHAPE_CLASSES["odd"]], "softmax", ["forward"], ["float32"])
    rows = [result_row("tridal", 0.9, workload) for workload in workloads]
    rows[3]["share_noisy"] = True
    left, right = dict(plots.make_figures(make_document(rows)))["suite-float32-forward"].axes
    assert left.get_xlabel() == "columns (shapes 2097152x32 to 2048x32768)"
    assert right.get_xlabel() == "columns (shapes 1342177x100 to 32768x4096 slice)"
    assert {axis.get_ylabel() for axis in (left, right)} == {"percent of copy"}
    hollow = [found for found in left.collections if isinstance(found, collections.PathCollection)]
    assert [found.get_offsets().tolist() for found in hollow] == [[[3, pytest.approx(0.9)]]]
    assert not [found for found in right.collections if isinstance(found, collections.PathCollection)]


def test_pictures_of_a_cpu_have_rates_on_one_scale() -> None:
    pytest.importorskip("matplotlib")
    first, second = make_workloads([SHAPE_CLASSES["rows"], SHAPE_CLASSES["few"]], "softmax", ["forward"], ["float32"])[
        ::13
    ]
    times = {COPY: Timing(1.0, 1.0, 1.0), "tridal": Timing(99.0, 99.0, 99.0)}
    rows = [make_row(first, name, 2, times[COPY], times[name], accelerated=False) for name in times]
    rows += [make_row(second, COPY, 2, times[COPY], times[COPY], accelerated=False)]
    figures = dict(plots.make_figures(make_document(rows, "cpu")))
    assert list(figures) == ["suite-float32-forward"]
    for axis in figures["suite-float32-forward"].axes:
        assert (axis.get_ylabel(), axis.get_yscale()) == ("useful traffic, GB/s", "log")
