"""What is measured, how rates follow from times, who takes part, and what the rows say."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from tridal.benchmarks import measuring, points, report, summary
from tridal.benchmarks.measuring import Measurement, Timing
from tridal.benchmarks.points import CLASSES, Point
from tridal.benchmarks.providers import COPY, PROVIDERS
from tridal.benchmarks.results import Row, row

CPU = torch.device("cpu")


def measured(provider: str, share: float, point: Point) -> Row:
    """A row in which a provider reaches a share of `copy_`'s rate."""
    copy = Timing(1.0, 0.9, 1.1)
    ms = 1.0 if provider == COPY else point.bytes / point.copied / share
    return row(Measurement(point, provider, Timing(ms, ms, ms), copy))


def test_grid_is_the_tutorials() -> None:
    asked = points.grid(points.GRID_ROWS, points.GRID_COLS, "softmax", ("forward", "backward"), ("float32",))
    widths = [point.cols for point in asked if point.direction == "forward"]
    assert widths == list(range(256, 12_673, 128))
    assert {point.rows for point in asked} == {4096}
    assert len(asked) == 2 * len(widths)


def test_useful_traffic() -> None:
    forward = Point("grid", "softmax", "forward", "float32", (4, 8))
    backward = Point("grid", "softmax", "backward", "bfloat16", (4, 8))
    assert forward.bytes == forward.copied == 2 * 32 * 4
    assert backward.bytes == 3 * 32 * 2
    assert backward.copied == 2 * 32 * 2


def test_rate_and_share() -> None:
    point = Point("grid", "softmax", "backward", "float32", (1000, 1000))
    one = Timing(1.0, 1.0, 1.0)
    copy = Measurement(point, COPY, one, one)
    assert copy.rate == pytest.approx(8.0)  # 8 MB in a millisecond
    assert copy.share == pytest.approx(1.0)
    half = Measurement(point, "x", Timing(3.0, 3.0, 3.0), one)
    assert half.rate == pytest.approx(4.0)
    assert half.share == pytest.approx(0.5)
    assert Measurement(point, "x", None, one, skipped="no").share is None


@pytest.mark.parametrize("group", CLASSES, ids=lambda group: group.name)
def test_classes(group: points.Class) -> None:
    asked = group.points("softmax", "forward", "float32")
    assert len(asked) == len(group.shapes) + len(group.slices)
    assert all(0 < (group.aim(way) or 1) <= 1 for way in ("forward", "backward"))  # type: ignore[arg-type]
    shrunk = group.points("softmax", "forward", "float32", shrink=points.HOST_SHRINK)
    assert [point.cols for point in shrunk] == [point.cols for point in asked], "rows are fewer, not shorter"
    assert max(math.prod(point.shape) for point in shrunk) <= 1 << 21
    if group.name in ("rows", "wide", "odd"):
        assert min(4 * math.prod(point.shape) for point in asked) >= 64 << 20, "a tensor of 64 MiB or more"


def test_classes_cover_what_is_hard() -> None:
    widths = {group.name: {shape[group.dim] for shape in (*group.shapes, *group.slices)} for group in CLASSES}
    assert {32, 32_768} <= widths["rows"]
    assert {65_536, 1_048_576} <= widths["wide"]
    assert {257, 781, 1001, 50_257, 151_935} <= widths["odd"]
    assert any(group.slices for group in CLASSES)
    assert min(shape[0] for group in CLASSES if group.name == "few" for shape in group.shapes) == 1


def test_a_slice_is_unaligned_and_a_view() -> None:
    x, grad = measuring.tensors(Point("odd", "softmax", "forward", "float32", (6, 64), slice=True), CPU)
    assert x.shape == grad.shape == (6, 64)
    assert x.data_ptr() % 16
    assert not x.is_contiguous()
    assert grad.is_contiguous()


def test_labels() -> None:
    assert Point("g", "softmax", "forward", "float32", (4, 8)).label == "4x8"
    assert Point("g", "softmax", "forward", "float32", (4, 8, 2), dim=1).label == "4x8x2 dim 1"
    assert Point("g", "softmax", "forward", "float32", (4, 8), slice=True).label == "4x8 slice"


@pytest.mark.parametrize("name", ["tridal", "torch", "naive", "torch.jit.script"])
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_providers_compute_what_torch_does(name: str, op: str, dim: int) -> None:
    if name == "torch.jit.script" and sys.version_info >= (3, 14):
        pytest.skip("torch.jit.script is not supported by this Python")
    x = torch.randn(3, 4, 5)
    with PROVIDERS[name].function(op, dim) as function:
        torch.testing.assert_close(function(x), getattr(torch, op)(x, dim))


def test_a_package_that_is_missing() -> None:
    provider = measuring.Provider("other", PROVIDERS["torch"].function, package="no_such_package_anywhere")
    assert provider.missing == "no_such_package_anywhere is not installed"
    assert provider.version is None
    (copy, other) = measuring.measure(Point("grid", "softmax", "forward", "float32", (2, 3)), [provider], CPU)
    assert copy.provider == COPY
    assert other.timing is None
    assert other.skipped == "ModuleNotFoundError: no_such_package_anywhere is not installed"


@pytest.fixture
def liger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with Liger-Kernel's interface."""
    package, ops, module = (
        ModuleType(name) for name in ("liger_kernel", "liger_kernel.ops", "liger_kernel.ops.softmax")
    )
    module.LigerSoftmaxFunction = type("F", (), {"apply": staticmethod(lambda x: x.softmax(-1))})  # type: ignore[attr-defined]
    for found in (package, ops, module):
        monkeypatch.setitem(sys.modules, found.__name__, found)


@pytest.mark.usefixtures("liger")
def test_a_provider_that_cannot_do_something_says_what() -> None:
    with PROVIDERS["Liger-Kernel"].function("softmax", -1) as function:
        torch.testing.assert_close(function(torch.ones(2, 2)), torch.full((2, 2), 0.5))
    with (
        pytest.raises(NotImplementedError, match="has softmax alone"),
        PROVIDERS["Liger-Kernel"].function("log_softmax", -1),
    ):
        pass
    with (
        pytest.raises(NotImplementedError, match="last dimension alone"),
        PROVIDERS["Liger-Kernel"].function("softmax", 0),
    ):
        pass


def test_standing() -> None:
    point = Point("small", "softmax", "forward", "float32", (4096, 256))
    other = Point("small", "softmax", "forward", "float32", (4096, 512))
    rows = [measured("torch", 0.5, point), measured("torch", 0.8, other)]
    rows += [{**rows[0], "ms": None, "share_of_copy": None, "skipped": "no", "shape": "third"}]
    found = summary.standing(rows, "torch", group="small")
    assert found.typical == pytest.approx(math.sqrt(0.4))
    assert found.worst == pytest.approx(0.5)
    assert (found.measured, found.points) == (2, 3)
    assert summary.standing(rows, "naive").typical is None


def test_shortfalls() -> None:
    rows_class = next(group for group in CLASSES if group.name == "rows")
    few = next(group for group in CLASSES if group.name == "few")
    wide, narrow = rows_class.points("softmax", "forward", "float32")[:2]
    single = few.points("softmax", "backward", "float32")[0]
    rows = [measured("tridal", 0.99, wide), measured("torch", 1.2, wide), measured("tridal", 0.5, narrow)]
    rows += [measured("tridal", 0.9, single), measured("torch", 0.91, single), measured("naive", 0.3, single)]
    assert [report.said(found) for found in summary.shortfalls(rows)] == [
        f"rows: {narrow.label} float32 forward: 0.50 of copy, the aim is 0.97"
    ], "a peer that is faster by less than noise counts as equal"
    rows.append(measured("quack", 0.95, single))
    told = [report.said(found) for found in summary.shortfalls(rows)]
    assert told[1:] == [f"few: {single.label} float32 backward: 0.90 of copy, quack is 0.95"]


def test_providers_that_never_ran_come_last() -> None:
    point = Point("small", "softmax", "forward", "float32", (4096, 256))
    absent = {**measured("quack", 1, point), "ms": None, "share_of_copy": None}
    rows = [measured(COPY, 1, point), absent, measured("tridal", 1, point)]
    assert summary.providers(rows) == ["tridal", "quack"]


def test_markdown() -> None:
    point = Point("few", "softmax", "forward", "float32", (1, 32_768))
    rows = [measured(COPY, 1, point), measured("tridal", 0.5, point)]
    rows.append({**measured("quack", 1, point), "ms": None, "share_of_copy": None, "gbps": None, "skipped": "refused"})
    machine = {"name": "A GPU", "device": "x:0", "python": "3", "torch": "2", "triton": "3", "tridal": "0"}
    found: dict[str, Any] = {
        "measurements": rows, "host": [], "machine": machine, "providers": {"quack": "0.6"}, "command": "tridal bench",
        "finished": "now",
    }  # fmt: skip
    text = report.markdown(found, "as it is", [])
    assert "| 1x32768 | 0.50 | - |" in text
    assert "- few: 1x32768 float32 forward: 0.50 of copy, the aim is 0.80" in text
    assert "- quack (1): refused" in text
    assert "- quack 0.6" in text


def test_numbers_as_shown() -> None:
    assert report.number(None, "gbps") == "-"
    assert report.number(4123.4, "gbps") == "4,123"
    assert report.number(41.234, "gbps") == "41.2"
    assert report.number(0.9712, "share_of_copy") == "0.97"


def test_current_device_is_left_alone_on_a_cpu() -> None:
    with measuring.current(CPU):
        assert not measuring.is_accelerator(CPU)


def test_reason_is_one_short_line() -> None:
    assert measuring.reason(ValueError("first\nsecond")) == "ValueError: first"
    assert measuring.reason(ValueError()) == "ValueError: no message"
    assert len(measuring.reason(ValueError("x" * 999))) < 220
