"""Tests `tridal bench`: its files, its tables and its error messages. The measured times are not tested."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

import tridal
from cli_helpers import run, run_json, words
from several_results import ROW_ENERGY
from tridal.benchmarks import measuring, providers, timing, workloads
from tridal.benchmarks.providers import COPY, PROVIDERS

pytestmark = pytest.mark.usefixtures("no_settings", "short_measurements")

SMALL = ["--rows", "4", "--cols", "8,13", "--device", "cpu"]


@pytest.fixture
def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes measurements short. Their times are meaningless."""
    monkeypatch.setattr(timing, "_CPU_ROUND_SECONDS", 0.0)
    monkeypatch.setattr(timing, "ATTEMPTS", 1)
    monkeypatch.setattr(measuring, "_HOST_CALLS", 2)


def bench(*arguments: str, code: int = 0) -> str:
    result = run("bench", *arguments, code=code)
    return str(result.output if code else result.stdout)


def bench_json(*arguments: str) -> Any:
    return run_json("bench", *arguments)


def measurements(file: str) -> list[Any]:
    rows: list[Any] = json.loads(Path(file).read_text())["measurements"]
    return rows


def test_grid_writes_all_files_and_prints_tables(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    output = bench(*SMALL, "--providers", "tridal,torch,naive", "--output", "out")
    assert {path.name for path in Path("out").iterdir()} == {
        "results.json", "results.csv", "results.md", "grid-float32.png",
    }  # fmt: skip
    assert Path("out", "grid-float32.png").read_bytes().startswith(b"\x89PNG")
    assert "a CPU, where torch computes tridal's tensors; shares of copy and aims are left out" in output
    assert "GB/s of useful traffic" in output
    assert "files written to out/: results.json, results.csv, results.md, grid-float32.png" in output
    with Path("out", "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 4
    assert {row["provider"] for row in rows} == {COPY, "tridal", "torch", "naive"}
    assert all(float(row["ms_20"]) <= float(row["ms"]) <= float(row["ms_80"]) for row in rows)
    assert "4x13" in Path("out", "results.md").read_text()


def test_json_output_equals_the_results_file(tmp_path: Path) -> None:
    document = bench_json(*SMALL, "--providers", "torch", "--direction", "forward", "--output", "out")
    assert document == json.loads(Path("out", "results.json").read_text())
    assert document["machine"]["device"] == "cpu"
    assert document["machine"]["torch"] == torch.__version__
    assert document["providers"] == {"torch": metadata.version("torch")}
    first, *_ = [row for row in document["measurements"] if row["provider"] == "torch"]
    assert first["gbps"] == pytest.approx(2 * 4 * 8 * 4 / first["ms"] * 1e-6)
    assert {row["share_of_copy"] for row in document["measurements"]} == {None}


@pytest.mark.usefixtures("unit_norm_in_table")
def test_providers_without_the_op_are_skipped_with_the_reason() -> None:
    output = bench(*SMALL, "--op", "unit_norm", "--providers", "tridal,torch,naive,torch.jit.script")
    assert "skipped 4 times: torch: NotImplementedError: torch has no function for unit_norm" in output
    assert "skipped 4 times: naive: NotImplementedError: naive has no function for unit_norm" in output
    assert "skipped 4 times: torch.jit.script: NotImplementedError: torch.jit.script has no function for" in output


def test_op_without_a_gradient_is_measured_forward(monkeypatch: pytest.MonkeyPatch, add_op: Any) -> None:
    add_op(ROW_ENERGY)
    document = bench_json(*SMALL, "--op", "row_energy", "--providers", "tridal,reference")
    assert [row["skipped"] for row in document["measurements"]] == [None] * 6
    assert {row["direction"] for row in document["measurements"]} == {"forward"}
    message = words("bench", *SMALL, "--op", "row_energy", "--direction", "backward", code=2)
    assert "Invalid value for --direction: row_energy has no gradient" in message


def test_suite_measures_the_chosen_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(workloads, "CPU_SHRINK", 1 << 22)
    arguments = ["--classes", "small,outer", "--device", "cpu", "--providers", "tridal,torch", "--output", "out"]
    output = bench(*arguments, "--dtype", "float32,bfloat16", "--direction", "forward")
    assert {path.name for path in Path("out").glob("*.png")} == {
        "suite-float32-forward.png", "suite-bfloat16-forward.png",
    }  # fmt: skip
    assert "GB/s of useful traffic, geometric mean of the shapes" in output
    assert "below the aim" not in output
    rows = measurements("out/results.json")
    assert {row["group"] for row in rows} == {"small", "outer"}
    assert {row["dtype"] for row in rows} == {"float32", "bfloat16"}


def test_the_chosen_device_is_measured() -> None:
    arguments = ["--rows", "2", "--cols", "3", "--direction", "forward", "--providers", "tridal", "--output", "out"]
    with tridal.record_calls() as calls:
        bench(*arguments, "--device", "interpreter")
    assert {call.backend for call in calls} == {"interpreter"}


def test_named_provider_that_is_not_installed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = replace(PROVIDERS["quack"], package="no_such_package")
    monkeypatch.setattr(providers, "PROVIDERS", {**PROVIDERS, "quack": missing})
    for names in ("quack", "tridal,quack"):
        output = bench(*SMALL, "--providers", names, code=1)
        assert output == "tridal: --providers: quack: no_such_package is not installed: pip install quack-kernels\n"
    assert not Path("bench-results").exists()


def test_from_option_makes_the_same_files_as_the_run() -> None:
    bench(*SMALL, "--providers", "torch", "--output", "first")
    bench("--from", "first/results.json", "--output", "second")
    first, second = (Path(folder, "results.csv").read_text() for folder in ("first", "second"))
    assert first == second
    assert {path.name for path in Path("first").iterdir()} == {path.name for path in Path("second").iterdir()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--providers", "torch.comple"], "did you mean 'torch.compile'"),
        (["--dtype", "flot32"], "did you mean 'float32'"),
        (["--op", "linear_cross_entropy"],
         "does not measure 'linear_cross_entropy'; it measures softmax, log_softmax,"),
        (["--op", "log_softmax", "--providers", "reference"], "'reference' has no log_softmax (known: tridal, torch, "),
        (["--direction", "forwards"], "did you mean 'forward'"),
        (["--classes", "smal"], "did you mean 'small'"),
        (["--suite", "--rows", "4"], "the suite has its own shapes"),
        (["--cols", "5:x"], "expected widths such as"),
        (["--cols", "0,3"], "expected widths such as"),
        (["--rows", "-4"], "--rows"),
        (["--host", "--cols", "256"], "Invalid value for --cols: --host measures calls on 8x128 in float32"),
        (["--from", "results.json", "--op", "rms_norm"], "Invalid value for --op: --from measures nothing; omit one"),
        (["--overwrite"], "Invalid value for --overwrite: name the folder with --output"),
    ],
)  # fmt: skip
def test_bad_option_value_is_a_usage_error(arguments: list[str], message: str) -> None:
    assert message in words("bench", *arguments, code=2)


@pytest.mark.parametrize("text", [None, "hello", "[]", '{"format": "tridal benchmark 1"}'])
def test_bad_file_is_one_error_message(text: str | None) -> None:
    if text is not None:
        Path("bad.json").write_text(text)
    message = "cannot be read: No such file" if text is None else "expected the results.json of a run of `tridal bench`"
    assert bench("--from", "bad.json", code=1).startswith(f"tridal: bad.json: {message}")


# -- files that are kept and replaced


def test_interrupted_run_keeps_its_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = measuring.measure
    measured: list[Any] = []

    def interrupt_second_workload(workload: Any, *arguments: Any) -> Any:
        if measured:
            assert len(measurements("out/results.partial.json")) == 2, "a partial file is written after each workload"
            raise KeyboardInterrupt
        measured.append(workload)
        return measure(workload, *arguments)

    monkeypatch.setattr(measuring, "measure", interrupt_second_workload)
    result = run("bench", *SMALL, "--providers", "torch", "--output", "out", code=130)
    assert "interrupted after 1 of 4 measurements: the results so far are kept" in result.stderr
    assert len(measurements("out/results.json")) == 2
    assert ", interrupted" in Path("out", "results.md").read_text()
    assert not Path("out", "results.partial.json").exists()


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


def test_file_that_cannot_be_written_is_one_sentence_and_the_results_are_printed() -> None:
    Path("out", "results.csv").mkdir(parents=True)
    result = run("bench", *SMALL, "--providers", "torch", "--output", "out", code=1)
    assert "geometric mean" in result.stdout
    assert "tridal: cannot write to out: Is a directory; not all results are saved" in result.stderr
