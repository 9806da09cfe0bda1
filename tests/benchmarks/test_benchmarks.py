"""Tests of the benchmarks: workloads, rates and shares, and what is measured."""

from __future__ import annotations

import math

import pytest
import torch

from tridal.benchmarks import measuring, workloads
from tridal.benchmarks.measuring import make_row
from tridal.benchmarks.op_benchmark import benchmark_of
from tridal.benchmarks.providers import COPY
from tridal.benchmarks.timing import Timing
from tridal.benchmarks.workloads import SHAPE_CLASSES, ShapeClass, Workload, make_workloads

CPU = torch.device("cpu")
SMALL = Workload("grid", "softmax", "forward", "float32", (2, 3))


MILLION = Workload("grid", "softmax", "backward", "float32", (1000, 1000))
ONE_MS, THREE_MS = Timing(1.0, 1.0, 1.0), Timing(3.0, 3.0, 3.0)


def test_rate_and_share_follow_from_useful_traffic() -> None:
    copy = make_row(MILLION, COPY, 3, ONE_MS, ONE_MS)
    assert copy["gbps"] == pytest.approx(8.0)  # 8 MB in a millisecond
    assert copy["share_of_copy"] == pytest.approx(1.0)
    backward = make_row(MILLION, "x", benchmark_of("softmax").traffic["backward"], ONE_MS, THREE_MS)
    assert backward["gbps"] == pytest.approx(4.0)  # 12 MB in three milliseconds: dy and y are read, dx is written
    assert backward["share_of_copy"] == pytest.approx(0.5)
    assert make_row(MILLION, "x", 3, ONE_MS, "no")["share_of_copy"] is None
    on_cpu = make_row(MILLION, "x", benchmark_of("log_softmax").traffic["forward"], ONE_MS, ONE_MS, accelerated=False)
    assert [on_cpu[name] for name in ("gbps", "share_of_copy", "share_noisy")] == [pytest.approx(8.0), None, False]


def test_share_is_unreliable_if_a_time_is_noisy_or_the_share_is_impossible() -> None:
    noisy, fast = Timing(1.0, 0.9, 1.1), Timing(0.6, 0.6, 0.6)  # 1.67 of copy
    pairs = (ONE_MS, ONE_MS), (ONE_MS, noisy), (noisy, ONE_MS), (ONE_MS, fast)
    rows = [make_row(MILLION, "x", 2, copy, own) for copy, own in pairs]
    marks = [(row["noisy"], row["share_noisy"]) for row in rows]
    assert marks == [(False, False), (True, True), (False, True), (False, True)]


@pytest.mark.parametrize("shape_class", SHAPE_CLASSES.values(), ids=lambda shape_class: shape_class.name)
def test_shape_class_makes_one_workload_per_shape_and_fewer_rows_on_a_cpu(shape_class: ShapeClass) -> None:
    full, shrunk = (
        make_workloads([shape_class], "softmax", ["forward"], ["float32"], shrink)
        for shrink in (1, workloads.CPU_SHRINK)
    )
    assert len(full) == len(shape_class.shapes) + len(shape_class.slices)
    if shape_class.name in ("rows", "wide", "odd"):
        assert min(4 * math.prod(workload.shape) for workload in full) >= 64 << 20, "a tensor of 64 MiB or more"
    assert [workload.cols for workload in shrunk] == [workload.cols for workload in full]
    assert max(math.prod(workload.shape) for workload in shrunk) <= 1 << 21


def test_slice_input_is_an_unaligned_view() -> None:
    workload = Workload("odd", "softmax", "forward", "float32", (6, 64), is_slice=True)
    (x,), _, (grad,) = measuring.make_inputs(workload, benchmark_of("softmax"), CPU)
    assert x.shape == grad.shape == (6, 64)
    assert x.data_ptr() % 16
    assert not x.is_contiguous()
    assert grad.is_contiguous()
