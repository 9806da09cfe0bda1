"""Tests what `tridal bench` writes and keeps: folders, interrupted runs, full disks."""

from __future__ import annotations

import json
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import run, run_process
from test_cli_bench import SMALL, bench, measurements, short_measurements  # noqa: F401  a fixture
from tridal.benchmarks import measuring, results
from tridal.benchmarks.providers import COPY

pytestmark = pytest.mark.usefixtures("no_settings", "short_measurements")


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_keeps_its_measurements(monkeypatch: pytest.MonkeyPatch, signal_number: signal.Signals) -> None:
    measure = measuring.measure
    measured: list[Any] = []

    def interrupt_second_workload(workload: Any, *arguments: Any) -> Any:
        if measured:
            assert len(measurements("out/results.partial.json")) == 2, "a partial file is written after each workload"
            signal.raise_signal(signal_number)
        measured.append(workload)
        return measure(workload, *arguments)

    monkeypatch.setattr(measuring, "measure", interrupt_second_workload)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore SIGINT
    try:
        result = run("bench", *SMALL, "--providers", "torch", "--output", "out", code=130)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert "interrupted after 1 of 4 measurements: the results so far are kept" in result.stderr
    assert len(measurements("out/results.json")) == 2
    assert ", interrupted" in Path("out", "results.md").read_text()
    assert not Path("out", "results.partial.json").exists()


def test_runs_without_output_have_folders_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Midnight(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Midnight:
            return cls(2000, 1, 1)

    monkeypatch.setattr(results, "datetime", Midnight)
    for _ in range(3):
        bench(*SMALL, "--direction", "forward", "--providers", "torch")
    first = "2000-01-01-000000-softmax"
    assert {path.parent.name for path in Path("bench-results").rglob("results.json")} == {
        first, f"{first}-2", f"{first}-3",
    }  # fmt: skip


def test_results_are_replaced_only_with_the_option() -> None:
    arguments = ["--rows", "2", "--cols", "3", "--device", "cpu", "--direction", "forward", "--output", "out"]
    bench(*arguments, "--providers", "torch", "--dtype", "float64")
    Path("out", "notes.txt").write_text("mine")
    before = Path("out", "results.json").read_text()
    output = bench(*arguments, "--providers", "naive", code=1)
    assert "out has the results of another run; choose another --output, or add --overwrite" in output
    assert Path("out", "results.json").read_text() == before
    bench(*arguments, "--providers", "naive", "--overwrite")
    assert {row["provider"] for row in measurements("out/results.json")} == {COPY, "naive"}
    assert Path("out", "notes.txt").read_text() == "mine"
    assert not Path("out", "grid-float64.png").exists(), "a picture of the former run"


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("/dev/null/x", "cannot write to /dev/null/x: Not a directory; name another folder with --output"),
        ("text", "cannot write to text: it is not a folder; name another folder with --output"),
    ],
)
def test_folder_that_cannot_be_written_is_an_error_before_the_run(
    monkeypatch: pytest.MonkeyPatch, folder: str, reason: str
) -> None:
    Path("text").write_text("hello")
    monkeypatch.setattr(measuring, "measure", None)
    assert bench(*SMALL, "--output", folder, code=1) == f"tridal: {reason}\n"


def test_file_that_cannot_be_written_is_one_sentence_and_the_results_are_printed() -> None:
    Path("out", "results.csv").mkdir(parents=True)
    result = run("bench", *SMALL, "--providers", "torch", "--output", "out", code=1)
    assert "4x13" in result.stdout
    assert "tridal: cannot write to out: Is a directory; not all results are saved; they are" in result.stderr


def test_further_sigterms_do_not_interrupt_the_writing(tmp_path: Path) -> None:
    """`timeout` sends two signals: one to the process that it started, and one to its process group."""
    code = """
import os, signal
from tridal.benchmarks import results
from tridal.cli import main
save_partial, save = results.save_partial, results.save
results.save_partial = lambda *arguments: (save_partial(*arguments), os.kill(os.getpid(), signal.SIGTERM))
results.save = lambda *arguments: (os.kill(os.getpid(), signal.SIGTERM), save(*arguments))[1]
main()
"""
    arguments = ["bench", "--rows", "4", "--cols", "5,6,7", "--providers", "torch", "--output", str(tmp_path)]
    completed = run_process(*arguments, python=("-c", code), code=130)
    assert "interrupted after 1 of 6 measurements: the results so far are kept" in completed.stderr
    assert json.loads((tmp_path / "results.json").read_text())["measurements"]
