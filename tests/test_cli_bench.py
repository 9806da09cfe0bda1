"""Tests `tridal bench`: its files, its tables and its error messages. The measured times are not tested."""

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

from third_party_op import unit_norm_in_table  # noqa: F401  a fixture
from tridal.benchmarks import measuring, providers, workloads
from tridal.benchmarks.providers import COPY, Provider
from tridal.cli import app
from tridal.devices.types import Backend
from tridal.ops import RowOp, table

pytestmark = pytest.mark.usefixtures("no_settings", "short_measurements")

SMALL = ["--rows", "4", "--cols", "8,13", "--device", "cpu"]


@pytest.fixture
def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes measurements short. Their times are meaningless."""
    monkeypatch.setattr(measuring, "_CPU_SECONDS", 0.0)
    monkeypatch.setattr(measuring, "_HOST_CALLS", 2)


def bench(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["bench", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output if code else result.stdout


def test_grid_writes_all_files_and_prints_tables(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    output = bench(*SMALL, "--providers", "tridal,torch,naive", "--output", "out")
    assert {path.name for path in Path("out").iterdir()} == {
        "results.json", "results.csv", "results.md", "grid-float32.png",
    }  # fmt: skip
    assert Path("out", "grid-float32.png").read_bytes().startswith(b"\x89PNG")
    assert "torch computes tridal's tensors; do not compare these figures with a GPU's" in output
    assert "GB/s of useful traffic" in output
    assert "files written to out/: results.json, results.csv, results.md, grid-float32.png" in output
    with Path("out", "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 4
    assert {row["provider"] for row in rows} == {COPY, "tridal", "torch", "naive"}
    assert all(float(row["ms_20"]) <= float(row["ms"]) <= float(row["ms_80"]) for row in rows)
    assert "4x13" in Path("out", "results.md").read_text()


def test_json_output_equals_the_results_file(tmp_path: Path) -> None:
    document = json.loads(bench(*SMALL, "--providers", "torch", "--direction", "forward", "--json"))
    assert document == json.loads(Path("bench-results", "results.json").read_text())
    assert document["machine"]["device"] == "cpu"
    assert document["machine"]["torch"] == torch.__version__
    assert document["providers"] == {"torch": torch.__version__}
    first, *_ = [row for row in document["measurements"] if row["provider"] == "torch"]
    assert first["gbps"] == pytest.approx(2 * 4 * 8 * 4 / first["ms"] * 1e-6)
    copies = [row for row in document["measurements"] if row["provider"] == COPY]
    assert first["share_of_copy"] == pytest.approx(copies[0]["ms"] / first["ms"])
    assert all(row["share_of_copy"] == 1 for row in copies)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_no_installed_provider_is_skipped(op: str) -> None:
    document = json.loads(bench(*SMALL, "--op", op, "--json", "--providers", "tridal,torch,naive,torch.jit.script"))
    skipped = {row["provider"]: row["skipped"] for row in document["measurements"] if row["skipped"]}
    if sys.version_info >= (3, 14):
        skipped.pop("torch.jit.script", None)
    assert skipped == {}


@pytest.mark.usefixtures("unit_norm_in_table")
def test_op_of_a_third_party_is_measured_against_its_reference() -> None:
    document = json.loads(bench(*SMALL, "--op", "unit_norm", "--json"))
    measured = [row["provider"] for row in document["measurements"] if not row["skipped"]]
    assert set(measured) == {COPY, "tridal", "reference"}
    assert {row["op"] for row in document["measurements"]} == {"unit_norm"}
    assert len(measured) == 2 * 2 * 3


@pytest.mark.usefixtures("unit_norm_in_table")
def test_providers_without_the_op_are_skipped_with_the_reason() -> None:
    output = bench(*SMALL, "--op", "unit_norm", "--providers", "torch,naive,torch.jit.script")
    assert "skipped 4 times: torch: NotImplementedError: torch has no function for unit_norm" in output
    assert "skipped 4 times: naive: NotImplementedError: supports only softmax and log_softmax" in output
    assert "skipped 4 times: torch.jit.script: NotImplementedError: supports only softmax and log_softmax" in output


def test_broken_op_is_a_usage_error_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = table.RegisteredOp("broken_op", "vendor 1.0", None, "it has no reference")
    monkeypatch.setattr(table, "_entries", (*table.registered(), broken))
    output = " ".join(bench(*SMALL, "--op", "broken_op", code=2).replace("│", " ").split())
    assert "op 'broken_op' of vendor 1.0 cannot be used: it has no reference" in output


def test_results_name_the_backend_and_its_device(backend: Backend) -> None:
    document = json.loads(
        bench("--rows", "3", "--cols", "5", "--device", backend.name, "--providers", "tridal", "--json")
    )
    assert document["machine"]["backend"] == backend.name
    assert document["machine"]["name"] == backend.properties(0).name
    assert [row["skipped"] for row in document["measurements"]] == [None] * 4


def test_suite_measures_the_chosen_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(workloads, "CPU_SHRINK", 1 << 22)
    arguments = ["--suite", "--classes", "small,outer", "--device", "cpu", "--providers", "tridal,torch"]
    output = bench(*arguments, "--dtype", "float32,bfloat16", "--direction", "forward")
    assert {path.name for path in Path("bench-results").glob("*.png")} == {
        "overview.png", "suite-float32-forward.png", "suite-bfloat16-forward.png",
    }  # fmt: skip
    assert "Share of copy's rate" in output
    rows = json.loads(Path("bench-results", "results.json").read_text())["measurements"]
    assert {row["group"] for row in rows} == {"small", "outer"}
    assert {row["dtype"] for row in rows} == {"float32", "bfloat16"}


def test_host_option_measures_host_times() -> None:
    output = bench("--host", "--device", "cpu", "--providers", "tridal,torch,quack")
    assert "Host time of a call on 8x128" in output
    rows = json.loads(Path("bench-results", "results.json").read_text())["host"]
    assert [(row["provider"], row["grad"]) for row in rows[:2]] == [("tridal", False), ("tridal", True)]
    assert rows[0]["us"] > 0
    if providers.PROVIDERS["quack"].missing:
        assert "quack is not installed" in rows[-1]["skipped"]


def test_from_option_makes_the_same_files_as_the_run() -> None:
    bench(*SMALL, "--providers", "torch", "--output", "first")
    bench("--from", "first/results.json", "--output", "second")
    first, second = (Path(folder, "results.csv").read_text() for folder in ("first", "second"))
    assert first == second
    assert {path.name for path in Path("first").iterdir()} == {path.name for path in Path("second").iterdir()}


def test_without_matplotlib_writes_no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(app, ["bench", *SMALL, "--providers", "torch"])
    assert result.exit_code == 0
    assert "matplotlib is not installed (pip install 'tridal[bench]')" in result.stderr
    assert Path("bench-results", "results.csv").exists()


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_keeps_its_measurements(monkeypatch: pytest.MonkeyPatch, signal_number: signal.Signals) -> None:
    measure = measuring.measure
    measured: list[Any] = []

    def interrupt_second_workload(workload: Any, *arguments: Any) -> Any:
        if measured:
            assert len(measurements("results.partial.json")) == 2, "a partial file is written after each workload"
            signal.raise_signal(signal_number)
        measured.append(workload)
        return measure(workload, *arguments)

    monkeypatch.setattr(measuring, "measure", interrupt_second_workload)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore SIGINT
    try:
        result = CliRunner().invoke(app, ["bench", *SMALL, "--providers", "torch"])
    finally:
        signal.signal(signal.SIGINT, previous)
    assert result.exit_code == 0
    assert "interrupted: the results so far are kept" in result.stderr
    assert len(measurements("results.json")) == 2
    assert not Path("bench-results", "results.partial.json").exists()


def measurements(file: str) -> list[Any]:
    rows: list[Any] = json.loads(Path("bench-results", file).read_text())["measurements"]
    return rows


def test_further_sigterms_do_not_interrupt_the_writing(tmp_path: Path) -> None:
    """`timeout` sends two signals: one to the process that it started, and one to its process group."""
    code = """
import os, signal, sys
from tridal.benchmarks import results
from tridal.cli import main
keep = results.save_partial
results.save_partial = lambda *arguments: (keep(*arguments), [os.kill(os.getpid(), signal.SIGTERM) for _ in range(3)])
sys.argv[1:] = ["bench", "--rows", "4", "--cols", "5,6,7", "--providers", "torch", "--output", sys.argv[1]]
main()
"""
    completed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stderr
    assert "interrupted: the results so far are kept" in completed.stderr
    assert json.loads((tmp_path / "results.json").read_text())["measurements"]


@pytest.mark.parametrize(
    ("arguments", "message"),
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
def test_bad_option_value_is_a_usage_error(arguments: list[str], message: str) -> None:
    assert message in " ".join(bench(*arguments, code=2).replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "interpretr"], "did you mean 'interpreter'"),
        (["--from", "nowhere.json"], "nowhere.json: cannot be read: No such file"),
        (["--from", "text"], "text: not JSON"),
        (["--from", "other.json"], "other.json: expected the results.json of a run"),
    ],
)
def test_unknown_device_or_bad_file_is_one_error_message(arguments: list[str], message: str) -> None:
    Path("text").write_text("hello")
    Path("other.json").write_text("[]")
    output = bench(*arguments, code=1)
    assert message in output
    assert "Traceback" not in output


def test_provider_with_wrong_results_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(op: RowOp, dim: int) -> providers.Function:
        return lambda x: torch.softmax(x, dim) * 2

    monkeypatch.setitem(providers.PROVIDERS, "double", Provider("double", double))  # type: ignore[index]
    output = bench(*SMALL, "--providers", "double")
    assert "skipped 4 times: double: ArithmeticError: wrong by 1 of the largest result" in output
