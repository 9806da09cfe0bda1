"""Tests of the benchmarks: workloads, rates and shares, providers, summaries and tables."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch

from third_party_op import UNIT_NORM, unit_norm_in_table  # noqa: F401  a fixture
from tridal.benchmarks import measuring, plots, report, workloads
from tridal.benchmarks.measuring import Timing, make_row
from tridal.benchmarks.providers import COPY, PROVIDERS, Function, Provider
from tridal.benchmarks.results import Row
from tridal.benchmarks.workloads import SHAPE_CLASSES, ShapeClass, Workload, make_workloads
from tridal.ops import RowOp
from tridal.ops.log_softmax import LOG_SOFTMAX
from tridal.ops.softmax import SOFTMAX

CPU = torch.device("cpu")


def result_row(provider: str, share: float, workload: Workload) -> Row:
    """Returns a row in which a provider reaches a share of `copy_`'s rate."""
    ms = 1.0 if provider == COPY else workload.useful_bytes / workload.copy_bytes / share
    return make_row(workload, provider, Timing(1.0, 0.9, 1.1), Timing(ms, ms, ms))


def test_default_grid_has_the_shapes_of_the_tutorial() -> None:
    grid = make_workloads([workloads.grid(*workloads.GRID)], "softmax", ("forward", "backward"), ("float32",))
    widths = [workload.cols for workload in grid if workload.direction == "forward"]
    assert widths == list(range(256, 12_673, 128))
    assert {workload.shape[0] for workload in grid} == {4096}
    assert len(grid) == 2 * len(widths)


def test_useful_traffic_is_two_tensors_forward_and_three_backward() -> None:
    forward = Workload("grid", "softmax", "forward", "float32", (4, 8))
    backward = Workload("grid", "softmax", "backward", "bfloat16", (4, 8))
    assert forward.useful_bytes == forward.copy_bytes == 2 * 32 * 4
    assert backward.useful_bytes == 3 * 32 * 2
    assert backward.copy_bytes == 2 * 32 * 2


def test_rate_and_share_follow_from_useful_traffic() -> None:
    workload = Workload("grid", "softmax", "backward", "float32", (1000, 1000))
    one_ms, three_ms = Timing(1.0, 1.0, 1.0), Timing(3.0, 3.0, 3.0)
    copy = make_row(workload, COPY, one_ms, one_ms)
    assert copy["gbps"] == pytest.approx(8.0)  # 8 MB in a millisecond
    assert copy["share_of_copy"] == pytest.approx(1.0)
    backward = make_row(workload, "x", one_ms, three_ms)
    assert backward["gbps"] == pytest.approx(4.0)  # 12 MB in three milliseconds
    assert backward["share_of_copy"] == pytest.approx(0.5)
    assert make_row(workload, "x", one_ms, None, skipped="no")["share_of_copy"] is None


@pytest.mark.parametrize("shape_class", SHAPE_CLASSES.values(), ids=lambda shape_class: shape_class.name)
def test_shape_class_makes_one_workload_per_shape(shape_class: ShapeClass) -> None:
    full = make_workloads([shape_class], "softmax", ["forward"], ["float32"])
    assert len(full) == len(shape_class.shapes) + len(shape_class.slices)
    assert set(shape_class.aims) <= {"forward", "backward"}
    assert all(0 < aim <= 1 for aim in shape_class.aims.values())
    if shape_class.name in ("rows", "wide", "odd"):
        assert min(4 * math.prod(workload.shape) for workload in full) >= 64 << 20, "a tensor of 64 MiB or more"


@pytest.mark.parametrize("shape_class", SHAPE_CLASSES.values(), ids=lambda shape_class: shape_class.name)
def test_shrinking_a_shape_class_removes_rows_and_keeps_columns(shape_class: ShapeClass) -> None:
    full = make_workloads([shape_class], "softmax", ["forward"], ["float32"])
    shrunk = make_workloads([shape_class], "softmax", ["forward"], ["float32"], shrink=workloads.CPU_SHRINK)
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
    x, grad = measuring.make_inputs(workload, CPU)
    assert x.shape == grad.shape == (6, 64)
    assert x.data_ptr() % 16
    assert not x.is_contiguous()
    assert grad.is_contiguous()


def test_label_names_shape_dim_and_slice() -> None:
    assert Workload("g", "softmax", "forward", "float32", (4, 8)).label == "4x8"
    assert Workload("g", "softmax", "forward", "float32", (4, 8, 2), dim=1).label == "4x8x2 dim 1"
    assert Workload("g", "softmax", "forward", "float32", (4, 8), is_slice=True).label == "4x8 slice"


@pytest.mark.parametrize("name", ["tridal", "torch", "reference", "naive", "torch.jit.script"])
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_local_providers_match_torch(name: str, op: str, dim: int) -> None:
    if name == "torch.jit.script" and sys.version_info >= (3, 14):
        pytest.skip("torch.jit.script is not supported by this Python")
    x = torch.randn(3, 4, 5)
    with PROVIDERS[name].using(op, dim) as function:
        torch.testing.assert_close(function(x), getattr(torch, op)(x, dim))


@pytest.mark.usefixtures("unit_norm_in_table")
@pytest.mark.parametrize("name", ["tridal", "reference", "torch.compile"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_providers_of_an_op_that_torch_does_not_have(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, 5, dtype=dtype)
    expected = torch.nn.functional.normalize(x.float(), dim=1).to(dtype)
    with PROVIDERS[name].using("unit_norm", 1) as function:
        torch.testing.assert_close(function(x), expected)


@pytest.mark.usefixtures("unit_norm_in_table")
def test_results_of_an_op_that_torch_does_not_have_are_compared_with_its_reference() -> None:
    def wrong(op: RowOp, dim: int) -> Function:
        return lambda x: op.compute(x, dim, (1e-6,)) * 1.01

    workload = Workload("grid", "unit_norm", "forward", "float32", (2, 3))
    (_, reference, other) = measuring.measure(workload, [PROVIDERS["reference"], Provider("wrong", wrong)], CPU)
    assert reference["skipped"] is None
    assert other["skipped"] == "ArithmeticError: wrong by 0.01 of the largest result"


@pytest.mark.parametrize("name", sorted(set(PROVIDERS) - {"Liger-Kernel", "FlagGems", "quack"}))
def test_only_the_default_providers_of_an_op_are_included(name: str) -> None:
    included = PROVIDERS[name].includes
    assert included(SOFTMAX) == (name != "reference")
    assert included(UNIT_NORM) == (name in ("tridal", "reference", "torch.compile"))


def test_provider_without_its_package_is_skipped_with_the_reason() -> None:
    provider = Provider("other", PROVIDERS["torch"].function, package="no_such_package_anywhere")
    assert provider.missing == "no_such_package_anywhere is not installed"
    assert provider.version is None
    (copy, other) = measuring.measure(Workload("grid", "softmax", "forward", "float32", (2, 3)), [provider], CPU)
    assert copy["provider"] == COPY
    assert other["ms"] is other["ms_20"] is other["ms_80"] is other["gbps"] is None
    assert other["skipped"] == "ModuleNotFoundError: no_such_package_anywhere is not installed"


@pytest.fixture
def liger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs a stub with Liger-Kernel's interface."""
    package, ops, module = (
        ModuleType(name) for name in ("liger_kernel", "liger_kernel.ops", "liger_kernel.ops.softmax")
    )
    module.LigerSoftmaxFunction = type("F", (), {"apply": staticmethod(lambda x: x.softmax(-1))})  # type: ignore[attr-defined]
    for stub in (package, ops, module):
        monkeypatch.setitem(sys.modules, stub.__name__, stub)


@pytest.mark.usefixtures("liger")
def test_unsupported_op_or_dim_of_a_provider_raises_with_the_reason() -> None:
    function = PROVIDERS["Liger-Kernel"].function
    torch.testing.assert_close(function(SOFTMAX, -1)(torch.ones(2, 2)), torch.full((2, 2), 0.5))
    with pytest.raises(NotImplementedError, match="supports only softmax"):
        function(LOG_SOFTMAX, -1)
    with pytest.raises(NotImplementedError, match="supports only the last dimension"):
        function(SOFTMAX, 0)


def test_kernels_of_flag_gems_are_active_while_its_function_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    active: list[list[str]] = []

    @contextmanager
    def use_gems(include: list[str]) -> Iterator[None]:
        active.append(include)
        yield
        active.pop()

    package = ModuleType("flag_gems")
    package.__spec__ = ModuleSpec("flag_gems", None)
    package.use_gems = use_gems  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flag_gems", package)
    with PROVIDERS["FlagGems"].using("softmax", 0) as function:
        assert active == [["softmax", "softmax_backward"]]
        torch.testing.assert_close(function(torch.ones(2, 2)), torch.full((2, 2), 0.5))
    assert active == []


def test_mean_share_does_not_count_skipped_workloads() -> None:
    first = Workload("small", "softmax", "forward", "float32", (4096, 256))
    second = Workload("small", "softmax", "forward", "float32", (4096, 512))
    rows = [result_row("torch", 0.5, first), result_row("torch", 0.8, second)]
    rows += [{**rows[0], "ms": None, "share_of_copy": None, "skipped": "no", "shape": "third"}]
    shares = report.shares(rows, provider="torch", group="small")
    assert shares == pytest.approx([0.5, 0.8])
    assert report.mean_share(shares) == pytest.approx(math.sqrt(0.4))
    assert report.mean_share(report.shares(rows, provider="naive")) is None


def test_shortfalls_are_missed_aims_and_faster_peers() -> None:
    first, second = make_workloads([SHAPE_CLASSES["rows"]], "softmax", ["forward"], ["float32"])[:2]
    single = make_workloads([SHAPE_CLASSES["few"]], "softmax", ["backward"], ["float32"])[0]
    rows = [result_row("tridal", 0.99, first), result_row("torch", 1.2, first), result_row("tridal", 0.5, second)]
    rows += [result_row("tridal", 0.9, single), result_row("torch", 0.91, single), result_row("naive", 0.3, single)]
    lines = list(report.shortfalls(rows))
    expected = [f"rows: {second.label} float32 forward: 0.50 of copy, the aim is 0.97"]
    assert lines == expected, "a peer that is faster by less than noise counts as equal"
    rows.append(result_row("quack", 0.95, single))
    lines = list(report.shortfalls(rows))
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
    machine = {"name": "A GPU", "device": "x:0", "python": "3", "torch": "2", "triton": "3", "tridal": "0"}
    document: dict[str, Any] = {
        "measurements": rows, "host": [], "machine": machine, "providers": {"quack": "0.6"}, "command": "tridal bench",
        "finished": "now",
    }  # fmt: skip
    text = report.markdown(document, [])
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


def test_current_device_context_has_no_effect_for_a_cpu() -> None:
    with measuring.current_device(CPU):
        assert not measuring.is_accelerator(CPU)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (ValueError(), "ValueError: no message"),
        (ValueError("x" * 999), f"ValueError: {'x' * 200}"),
    ],
)
def test_reason_for_skipping_a_provider_is_one_short_line(error: Exception, expected: str) -> None:
    def fail(op: RowOp, dim: int) -> Function:
        raise error

    workload = Workload("grid", "softmax", "forward", "float32", (2, 3))
    (_, row) = measuring.measure(workload, [Provider("failing", fail)], CPU)
    assert row["skipped"] == expected
    for row in measuring.measure_host_times([Provider("failing", fail)], CPU, "softmax"):
        assert (row["us"], row["skipped"]) == (None, expected)


def test_overview_shows_mean_and_worst_share_and_number_of_measured_workloads() -> None:
    pytest.importorskip("matplotlib")
    workloads = make_workloads([SHAPE_CLASSES["small"]], "softmax", ["forward"], ["float32"])[:3]
    rows = [result_row("torch", share, workload) for share, workload in zip((0.5, 0.8, 1), workloads, strict=True)]
    rows[2] |= {"ms": None, "share_of_copy": None, "gbps": None}
    rows += [{**row, "provider": "naive", "ms": None, "share_of_copy": None, "gbps": None} for row in rows]
    machine = {"name": "A GPU", "device": "x:0", "torch": "2"}
    figure = dict(plots.make_figures({"measurements": rows, "host": [], "machine": machine}))["overview"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.63", "0.50 2/3", "none"]
