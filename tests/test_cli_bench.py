"""`tridal bench`: the files and tables that it makes, and what it says of wrong questions. It is no timed test."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tridal.benchmarks import measuring, points, providers
from tridal.benchmarks.providers import COPY, Provider
from tridal.cli import app
from tridal.devices.types import Backend

pytestmark = pytest.mark.usefixtures("no_settings", "quickly")

SMALL = ["--rows", "4", "--cols", "8,13", "--device", "cpu"]


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements that mean nothing and take no time."""
    monkeypatch.setattr(measuring, "_CPU_SECONDS", 0.0)
    monkeypatch.setattr(measuring, "_HOST_CALLS", 2)


def bench(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["bench", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output if code else result.stdout


def test_grid_writes_tables_and_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    text = bench(*SMALL, "--providers", "tridal,torch,naive", "--output", "out")
    assert {path.name for path in Path("out").iterdir()} == {
        "results.json", "results.csv", "results.md", "grid-float32.png",
    }  # fmt: skip
    assert Path("out", "grid-float32.png").read_bytes().startswith(b"\x89PNG")
    assert "says nothing of a GPU" in text
    assert "GB/s of useful traffic" in text
    with Path("out", "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 4
    assert {row["provider"] for row in rows} == {COPY, "tridal", "torch", "naive"}
    assert all(float(row["ms_20"]) <= float(row["ms"]) <= float(row["ms_80"]) for row in rows)
    assert "4x13" in Path("out", "results.md").read_text()


def test_json(tmp_path: Path) -> None:
    told = json.loads(bench(*SMALL, "--providers", "torch", "--direction", "forward", "--json"))
    assert told == json.loads(Path("bench-results", "results.json").read_text())
    assert told["machine"]["device"] == "cpu"
    assert told["machine"]["torch"] == torch.__version__
    assert told["providers"] == {"torch": torch.__version__}
    first, *_ = [row for row in told["measurements"] if row["provider"] == "torch"]
    assert first["gbps"] == pytest.approx(2 * 4 * 8 * 4 / first["ms"] * 1e-6)
    copies = [row for row in told["measurements"] if row["provider"] == COPY]
    assert first["share_of_copy"] == pytest.approx(copies[0]["ms"] / first["ms"])
    assert all(row["share_of_copy"] == 1 for row in copies)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_every_provider_that_is_here_is_right(op: str) -> None:
    told = json.loads(bench(*SMALL, "--op", op, "--json", "--providers", "tridal,torch,naive,torch.jit.script"))
    skipped = {row["provider"]: row["skipped"] for row in told["measurements"] if row["skipped"]}
    if sys.version_info >= (3, 14):
        skipped.pop("torch.jit.script", None)
    assert skipped == {}


def test_on_a_backend(backend: Backend) -> None:
    told = json.loads(bench("--rows", "3", "--cols", "5", "--device", backend.name, "--providers", "tridal", "--json"))
    assert told["machine"]["backend"] == backend.name
    assert told["machine"]["name"] == backend.properties(0).name
    assert [row["skipped"] for row in told["measurements"]] == [None] * 4


def test_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(points, "HOST_SHRINK", 1 << 22)
    arguments = ["--suite", "--classes", "small,outer", "--device", "cpu", "--providers", "tridal,torch"]
    text = bench(*arguments, "--dtype", "float32,bfloat16", "--direction", "forward")
    assert {path.name for path in Path("bench-results").glob("*.png")} == {
        "overview.png", "suite-float32-forward.png", "suite-bfloat16-forward.png",
    }  # fmt: skip
    assert "Share of copy" in text
    rows = json.loads(Path("bench-results", "results.json").read_text())["measurements"]
    assert {row["group"] for row in rows} == {"small", "outer"}
    assert {row["dtype"] for row in rows} == {"float32", "bfloat16"}


def test_host() -> None:
    text = bench("--host", "--device", "cpu", "--providers", "tridal,torch,quack")
    assert "Host time of a call on 8x128" in text
    rows = json.loads(Path("bench-results", "results.json").read_text())["host"]
    assert [(row["provider"], row["grad"]) for row in rows[:2]] == [("tridal", False), ("tridal", True)]
    assert rows[0]["us"] > 0
    if providers.PROVIDERS["quack"].missing:
        assert "quack is not installed" in rows[-1]["skipped"]


def test_draws_from_a_file_again() -> None:
    bench(*SMALL, "--providers", "torch", "--output", "first")
    bench("--from", "first/results.json", "--output", "second")
    first, second = (Path(folder, "results.csv").read_text() for folder in ("first", "second"))
    assert first == second
    assert {path.name for path in Path("first").iterdir()} == {path.name for path in Path("second").iterdir()}


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(app, ["bench", *SMALL, "--providers", "torch"])
    assert result.exit_code == 0
    assert "matplotlib is not installed (pip install 'tridal[bench]')" in result.stderr
    assert Path("bench-results", "results.csv").exists()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch, sent: signal.Signals) -> None:
    measured = measuring.measure
    seen: list[Any] = []

    def interrupted(point: Any, *arguments: Any) -> Any:
        if seen:
            assert len(measurements("results.partial.json")) == 2, "whatever comes, it is kept"
            signal.raise_signal(sent)
        seen.append(point)
        return measured(point, *arguments)

    monkeypatch.setattr(measuring, "measure", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        result = CliRunner().invoke(app, ["bench", *SMALL, "--providers", "torch"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == 0
    assert "what was measured so far is kept" in result.stderr
    assert len(measurements("results.json")) == 2
    assert not Path("bench-results", "results.partial.json").exists()


def measurements(file: str) -> list[Any]:
    found: list[Any] = json.loads(Path("bench-results", file).read_text())["measurements"]
    return found


def test_terminated_twice_is_terminated_once(tmp_path: Path) -> None:
    """As `timeout` does: the process that it started, and then its whole group."""
    code = """
import os, signal, sys
from tridal.benchmarks import results
from tridal.cli import main
keep = results.keep
results.keep = lambda *arguments: (keep(*arguments), [os.kill(os.getpid(), signal.SIGTERM) for _ in range(3)])
sys.argv[1:] = ["bench", "--rows", "4", "--cols", "5,6,7", "--providers", "torch", "--output", sys.argv[1]]
main()
"""
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "what was measured so far is kept" in ran.stderr
    assert json.loads((tmp_path / "results.json").read_text())["measurements"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--providers", "torch.comple"], "did you mean 'torch.compile'"),
        (["--dtype", "flot32"], "did you mean 'float32'"),
        (["--op", "softmin"], "did you mean 'softmax'"),
        (["--direction", "forwards"], "did you mean 'forward'"),
        (["--suite", "--classes", "smal"], "did you mean 'small'"),
        (["--cols", "5:x"], "expected widths such as"),
        (["--cols", "5:4:1"], "expected widths such as"),
        (["--cols", "1:9:0"], "expected widths such as"),
        (["--cols", "0,3"], "expected widths such as"),
        (["--rows", "-4"], "--rows"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str) -> None:
    assert words in " ".join(bench(*arguments, code=2).replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "interpretr"], "did you mean 'interpreter'"),
        (["--from", "nowhere.json"], "nowhere.json: cannot be read: No such file"),
        (["--from", "text"], "text: not JSON"),
        (["--from", "other.json"], "other.json: expected the results.json of a run"),
    ],
)
def test_what_cannot_be_used(arguments: list[str], words: str) -> None:
    Path("text").write_text("hello")
    Path("other.json").write_text("[]")
    text = bench(*arguments, code=1)
    assert words in text
    assert "Traceback" not in text


def test_a_provider_that_is_wrong_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import contextmanager

    @contextmanager
    def double(op: str, dim: int) -> Any:
        yield lambda x: torch.softmax(x, dim) * 2

    monkeypatch.setitem(providers.PROVIDERS, "double", Provider("double", double))  # type: ignore[index]
    text = bench(*SMALL, "--providers", "double")
    assert "left out 4 times: double: ArithmeticError: wrong by 1 of the largest result" in text
