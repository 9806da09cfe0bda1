"""Tests of the reports of benchmarks: summaries, tables, and marks of unreliable values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmark_rows import make_document, result_row
from tridal.benchmarks import report
from tridal.benchmarks.measuring import make_row
from tridal.benchmarks.op_benchmark import benchmark_of
from tridal.benchmarks.providers import COPY
from tridal.benchmarks.timing import Timing
from tridal.benchmarks.workloads import SHAPE_CLASSES, Workload, make_workloads


def test_shortfalls_are_missed_aims_and_faster_peers() -> None:
    first, second = make_workloads([SHAPE_CLASSES["rows"]], "softmax", ["forward"], ["float32"])[:2]
    single = make_workloads([SHAPE_CLASSES["few"]], "softmax", ["backward"], ["float32"])[0]
    rows = [result_row("tridal", 0.99, first), result_row("torch", 1.2, first), result_row("tridal", 0.5, second)]
    rows += [result_row("tridal", 0.9, single), result_row("torch", 0.91, single), result_row("naive", 0.3, single)]
    lines = list(report.shortfalls(rows, benchmark_of("softmax").aims))
    expected = [f"rows: {second.label} float32 forward: 0.50 of copy, the aim is 0.97"]
    assert lines == expected, "a peer that is faster by less than noise counts as equal"
    rows.append(result_row("quack", 0.95, single))
    lines = list(report.shortfalls(rows, benchmark_of("softmax").aims))
    assert lines == [*expected, f"few: {single.label} float32 backward: 0.90 of copy, quack is 0.95"]


def test_markdown_has_shares_shortfalls_and_skip_reasons() -> None:
    workload = Workload("few", "softmax", "forward", "float32", (1, 32_768))
    rows = [result_row(COPY, 1, workload), result_row("tridal", 0.5, workload)]
    rows.append(
        {**result_row("quack", 1, workload), "ms": None, "share_of_copy": None, "gbps": None, "skipped": "refused"}
    )
    text = report.markdown(make_document(rows), {Path("a.png"): "A sentence."})
    assert "A GPU (`x:0`), useful traffic, L2 flushed between calls" in text
    assert "| 1x32768 | 0.50 | - |" in text
    assert "- few: 1x32768 float32 forward: 0.50 of copy, the aim is 0.80" in text
    assert "- quack (1): refused" in text
    assert "- quack 0.6" in text
    assert "![A sentence.](a.png)\n" in text


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
