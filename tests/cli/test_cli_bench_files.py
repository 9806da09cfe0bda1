"""Tests what `tridal bench` writes and keeps: folders, interrupted runs, full disks."""

from __future__ import annotations

import errno
import json
import os
import resource
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


def test_run_that_is_interrupted_before_its_first_result_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "measure_host_times", interrupt)
    result = run("bench", "--host", "--device", "cpu", "--output", "out", code=130)
    assert result.stdout == ""
    assert "interrupted after 0 of 1 measurement" in result.stderr
    assert not Path("out").exists()


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


def test_read_only_folder_is_an_error_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(results.tempfile, "TemporaryFile", refuse)  # root may write to any folder
    monkeypatch.setattr(measuring, "measure", None)
    assert "cannot write to out: Permission denied" in bench(*SMALL, "--output", "out", code=1)


def test_full_disk_is_one_sentence_and_the_results_are_printed() -> None:
    """A limit of the file size has the same effect as a full disk: a write fails with an OSError."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        result = run("bench", *SMALL, "--providers", "torch", "--output", "out", code=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "4x13" in result.stdout
    message = "cannot write to out: File too large"
    assert " ".join(result.stderr.split()) == (
        f"{message}; the run continues, and writes its results at the end "
        f"tridal: {message}; not all results are saved; they are printed above"
    )
    assert list(Path("out").iterdir()) == []


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
