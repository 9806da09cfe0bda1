"""Tests of the benchmarks: workloads, rates and shares, providers and their functions."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch

from third_party_op import UNIT_NORM, unit_norm_in_table  # noqa: F401  a fixture
from tridal.benchmarks import measuring, timing, workloads
from tridal.benchmarks.measuring import make_row
from tridal.benchmarks.op_benchmark import Function, OpBenchmark
from tridal.benchmarks.op_benchmarks import OP_BENCHMARKS, benchmark_of
from tridal.benchmarks.providers import COPY, PROVIDERS, Provider
from tridal.benchmarks.results import Row
from tridal.benchmarks.timing import Timing
from tridal.benchmarks.workloads import SHAPE_CLASSES, ShapeClass, Workload, make_workloads
from tridal.ops import row_maths, table

CPU = torch.device("cpu")
SMALL = Workload("grid", "softmax", "forward", "float32", (2, 3))


def test_default_grid_has_the_shapes_of_the_tutorial() -> None:
    grid = make_workloads([workloads.grid(*workloads.GRID)], "softmax", ("forward", "backward"), ("float32",))
    widths = [workload.cols for workload in grid if workload.direction == "forward"]
    assert widths == list(range(256, 12_673, 128))
    assert {workload.shape[0] for workload in grid} == {4096}
    assert len(grid) == 2 * len(widths)


MILLION = Workload("grid", "softmax", "backward", "float32", (1000, 1000))
ONE_MS, THREE_MS = Timing(1.0, 1.0, 1.0), Timing(3.0, 3.0, 3.0)


def test_rate_and_share_follow_from_useful_traffic() -> None:
    copy = make_row(MILLION, COPY, 3, ONE_MS, ONE_MS)
    assert copy["gbps"] == pytest.approx(8.0)  # 8 MB in a millisecond
    assert copy["share_of_copy"] == pytest.approx(1.0)
    backward = make_row(MILLION, "x", benchmark_of("softmax").passes["backward"], ONE_MS, THREE_MS)
    assert backward["gbps"] == pytest.approx(4.0)  # 12 MB in three milliseconds: dy and y are read, dx is written
    assert backward["share_of_copy"] == pytest.approx(0.5)
    assert make_row(MILLION, "x", 3, ONE_MS, "no")["share_of_copy"] is None
    on_cpu = make_row(MILLION, "x", benchmark_of("log_softmax").passes["forward"], ONE_MS, ONE_MS, accelerated=False)
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


def test_suite_covers_narrow_wide_odd_sliced_and_single_rows() -> None:
    classes = SHAPE_CLASSES.values()
    widths = {found.name: {shape[found.dim] for shape in (*found.shapes, *found.slices)} for found in classes}
    assert {32, 32_768} <= widths["rows"]
    assert {65_536, 1_048_576} <= widths["wide"]
    assert {257, 781, 1001, 50_257, 151_935} <= widths["odd"]
    assert any(found.slices for found in classes)
    assert min(shape[0] for shape in SHAPE_CLASSES["few"].shapes) == 1


def test_slice_input_is_an_unaligned_view() -> None:
    workload = Workload("odd", "softmax", "forward", "float32", (6, 64), is_slice=True)
    (x,), grad = measuring.make_inputs(workload, OpBenchmark(), CPU)
    assert x.shape == grad.shape == (6, 64)
    assert x.data_ptr() % 16
    assert not x.is_contiguous()
    assert grad.is_contiguous()


def test_label_names_shape_dim_and_slice() -> None:
    labels = [SMALL.label, replace(SMALL, shape=(4, 8, 2), dim=1).label, replace(SMALL, is_slice=True).label]
    assert labels == ["2x3", "4x8x2 dim 1", "2x3 slice"]


@pytest.mark.parametrize("op", sorted(OP_BENCHMARKS))
def test_aims_name_shape_classes_and_directions(op: str) -> None:
    for name, aims in OP_BENCHMARKS[op].aims.items():
        assert name in SHAPE_CLASSES
        assert set(aims) <= {"forward", "backward"}
        assert all(0 < aim <= 1 for aim in aims.values())


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("name", ["tridal", "torch", "naive", "torch.jit.script"])
@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_local_providers_match_torch(name: str, op: str, dim: int) -> None:
    if name == "torch.jit.script" and sys.version_info >= (3, 14):
        pytest.skip("torch.jit.script is not supported by this Python")
    x = torch.randn(3, 4, 5)
    torch.testing.assert_close(benchmark_of(op).functions[name](dim)(x), getattr(torch, op)(x, dim))


@pytest.mark.usefixtures("unit_norm_in_table")
@pytest.mark.parametrize("name", ["tridal", "reference", "torch.compile"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_providers_of_an_op_that_torch_does_not_have(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, 5, dtype=dtype)
    expected = torch.nn.functional.normalize(x.float(), dim=1).to(dtype)
    with PROVIDERS[name].context("unit_norm"):
        torch.testing.assert_close(benchmark_of("unit_norm").functions[name](1)(x), expected)


@pytest.mark.usefixtures("unit_norm_in_table")
def test_functions_of_an_op_without_an_entry_are_derived() -> None:
    assert set(benchmark_of("softmax").functions) == set(PROVIDERS) - {"reference"}
    assert set(benchmark_of("log_softmax").functions) == set(PROVIDERS) - {"reference", "Liger-Kernel", "quack"}
    assert set(benchmark_of("unit_norm").functions) == {"tridal", "reference", "torch.compile"}


def add_op(monkeypatch: pytest.MonkeyPatch, entry: OpBenchmark) -> None:
    """Adds unit_norm with this entry to the table of ops."""
    registered = table.RegisteredOp("unit_norm", "a test", replace(UNIT_NORM, benchmark=entry))
    monkeypatch.setattr(table, "_entries", (*table.registered(), registered))


def measure(workload: Workload, *providers: Provider) -> list[Row]:
    rows = measuring.measure(workload, providers, CPU)
    assert rows[0]["provider"] == COPY
    return rows[1:]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_entry_of_a_third_party_declares_arguments_traffic_and_peers(
    monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    """An op with a weight, whose gradient is computed too, and with one output per row."""

    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (x * weight).sum(-1)

    def without_weight_gradient(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return loss(x, weight.detach()) + 0 * weight.sum()

    functions = {
        "reference": lambda dim: loss, "tridal": lambda dim: loss, "peer": lambda dim: without_weight_gradient,
    }  # fmt: skip
    entry = OpBenchmark(functions, lambda x, dim: (torch.randn(x.shape[dim]),), {"forward": 1, "backward": 2})
    add_op(monkeypatch, entry)
    workload = Workload("grid", "unit_norm", direction, "float32", (5, 7))
    ours, peer = measure(workload, PROVIDERS["tridal"], Provider("peer"))
    assert ours["gbps"] == pytest.approx(entry.passes[direction] * 5 * 7 * 4 / ours["ms"] * 1e-6)
    expected = None if direction == "forward" else "ArithmeticError: wrong by 1 of the largest result"
    assert (ours["skipped"], peer["skipped"]) == (None, expected)


@pytest.mark.usefixtures("unit_norm_in_table")
def test_results_of_an_op_that_torch_does_not_have_are_compared_with_its_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    functions = {"wrong": lambda dim: lambda x: row_maths.reference_of(UNIT_NORM, x, dim, (1e-6,)) * 1.01}
    add_op(monkeypatch, OpBenchmark(functions))
    providers = PROVIDERS["reference"], Provider("wrong"), PROVIDERS["torch"]
    reference, wrong, absent = measure(replace(SMALL, op="unit_norm"), *providers)
    assert reference["skipped"] is None
    assert wrong["skipped"] == "ArithmeticError: wrong by 0.01 of the largest result"
    assert absent["skipped"] == "NotImplementedError: torch has no function for unit_norm"


def test_provider_without_its_package_is_skipped_with_the_reason() -> None:
    provider = Provider("torch", package="no_such_package_anywhere")
    assert provider.missing == "no_such_package_anywhere is not installed: pip install torch"
    assert provider.version is None
    (row,) = measure(SMALL, provider)
    assert row["ms"] is row["ms_20"] is row["ms_80"] is row["gbps"] is None
    assert row["skipped"] == "ModuleNotFoundError: no_such_package_anywhere is not installed: pip install torch"


def test_unsupported_dim_of_a_provider_raises_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("liger_kernel.ops.softmax")
    module.LigerSoftmaxFunction = type("F", (), {"apply": staticmethod(lambda x: x.softmax(-1))})  # type: ignore[attr-defined]
    for stub in (ModuleType("liger_kernel"), ModuleType("liger_kernel.ops"), module):
        monkeypatch.setitem(sys.modules, stub.__name__, stub)
    make = benchmark_of("softmax").functions["Liger-Kernel"]
    torch.testing.assert_close(make(-1)(torch.ones(2, 2)), torch.full((2, 2), 0.5))
    with pytest.raises(NotImplementedError, match="supports only the last dimension"):
        make(0)


def test_kernels_of_flag_gems_are_active_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    active: list[list[str]] = []
    entered: list[list[str]] = []

    @contextmanager
    def use_gems(include: list[str]) -> Iterator[None]:
        active.append(include)
        entered.append(include)
        yield
        active.pop()

    def checked_torch(dim: int) -> Function:
        def function(x: torch.Tensor) -> torch.Tensor:
            assert active == [["softmax", "softmax_backward"]]
            return torch.softmax(x, dim)

        return function

    package = ModuleType("flag_gems")
    package.__spec__ = ModuleSpec("flag_gems", None)
    package.use_gems = use_gems  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flag_gems", package)
    entry = replace(benchmark_of("softmax"), functions={**benchmark_of("softmax").functions, "FlagGems": checked_torch})
    monkeypatch.setattr(measuring, "benchmark_of", lambda op: entry)
    (row,) = measure(replace(SMALL, direction="backward"), PROVIDERS["FlagGems"])
    assert row["skipped"] is None
    assert len(entered) > timing.ROUNDS
    assert active == []


def test_current_device_context_has_no_effect_for_a_cpu() -> None:
    with timing.current_device(CPU):
        assert not timing.is_accelerator(CPU)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (ValueError(), "ValueError: no message"),
        (ValueError("x" * 999), f"ValueError: {'x' * 200}"),
    ],
)
def test_reason_for_skipping_a_provider_is_one_short_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: str
) -> None:
    def fail(dim: int) -> Function:
        raise error

    add_op(monkeypatch, OpBenchmark({"failing": fail}))
    (row,) = measure(replace(SMALL, op="unit_norm"), Provider("failing"))
    assert row["skipped"] == expected
    for row in measuring.measure_host_times([Provider("failing")], CPU, "unit_norm"):
        assert (row["us"], row["skipped"]) == (None, expected)


def test_workload_that_does_not_fit_into_memory_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 256 GiB")

    monkeypatch.setattr(measuring, "make_inputs", refuse)
    rows = measuring.measure(SMALL, [PROVIDERS["torch"]], CPU)
    assert [row["provider"] for row in rows] == [COPY, "torch"]
    assert {row["skipped"] for row in rows} == {"OutOfMemoryError: tried to allocate 256 GiB"}
