"""Tests `tridal bench`: its files, its tables and its error messages. The measured times are not tested."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from cli_helpers import run, run_json, words
from several_results import ROW_ENERGY
from tridal.benchmarks import measuring, providers, timing, workloads
from tridal.benchmarks.op_benchmark import benchmark_of
from tridal.benchmarks.providers import COPY, PROVIDERS
from tridal.benchmarks.workloads import SHAPE_CLASSES
from tridal.cli.bench_options import BenchOptions
from tridal.devices.types import ITEMSIZE, Backend
from tridal.ops import table

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


def test_broken_op_is_a_usage_error_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = table.RegisteredOp("broken_op", "vendor 1.0", None, "it has no reference")
    monkeypatch.setattr(table, "_entries", (*table.registered(), broken))
    output = words("bench", *SMALL, "--op", "broken_op", code=2)
    assert "op 'broken_op' of vendor 1.0 cannot be used: it has no reference" in output


def test_results_name_the_backend_and_its_device(backend: Backend) -> None:
    document = bench_json("--rows", "3", "--cols", "5", "--device", backend.name, "--providers", "tridal")
    assert document["machine"]["backend"] == backend.name
    assert document["machine"]["name"] == backend.properties(0).name
    assert [row["skipped"] for row in document["measurements"]] == [None] * 4


def test_an_accelerator_measures_the_whole_shapes_of_classes_and_a_cpu_smaller_ones() -> None:
    options = BenchOptions(classes="rows", dtype="float32", direction="forward")
    on_gpu, on_cpu = (options.make_workloads("softmax", benchmark_of("softmax"), gpu) for gpu in (True, False))
    assert [workload.shape for workload in on_gpu] == [*SHAPE_CLASSES["rows"].shapes]
    assert [workload.shape for workload in on_cpu] != [*SHAPE_CLASSES["rows"].shapes]


def test_suite_measures_the_chosen_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(workloads, "CPU_SHRINK", 1 << 22)
    arguments = ["--classes", "small,outer", "--device", "cpu", "--providers", "tridal,torch", "--output", "out"]
    output = bench(*arguments, "--dtype", "float32,bfloat16", "--direction", "forward")
    assert {path.name for path in Path("out").glob("*.png")} == {
        "suite-float32-forward.png", "suite-bfloat16-forward.png",
    }  # fmt: skip
    assert "GB/s of useful traffic, geometric mean of each class" in output
    assert "below the aim" not in output
    rows = measurements("out/results.json")
    assert {row["group"] for row in rows} == {"small", "outer"}
    assert {row["dtype"] for row in rows} == {"float32", "bfloat16"}


def test_host_option_measures_host_times() -> None:
    output = bench("--host", "--device", "cpu", "--providers", "tridal,torch", "--output", "out")
    assert "Host time of a call on 8x128" in output
    rows = json.loads(Path("out", "results.json").read_text())["host"]
    assert [(row["provider"], row["grad"]) for row in rows[:2]] == [("tridal", False), ("tridal", True)]
    assert rows[0]["us"] > 0


def test_named_provider_that_is_not_installed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = replace(PROVIDERS["quack"], package="no_such_package")
    monkeypatch.setattr(providers, "PROVIDERS", {**PROVIDERS, "quack": missing})
    for names in ("quack", "tridal,quack"):
        output = bench(*SMALL, "--providers", names, code=1)
        assert output == "tridal: --providers: quack: no_such_package is not installed: pip install quack-kernels\n"
    assert not Path("bench-results").exists()


def test_provider_that_is_named_twice_is_measured_once() -> None:
    rows = bench_json(*SMALL, "--providers", "torch, torch", "--direction", "forward")["measurements"]
    assert [row["provider"] for row in rows] == [COPY, "torch"] * 2


def test_op_that_is_not_measured_is_not_listed() -> None:
    unknown = words("bench", "--op", "dropout", code=2)
    assert "unknown op 'dropout'; known are softmax, log_softmax, rms_norm, layer_norm, cross_entropy" in unknown
    assert "linear_cross_entropy" not in unknown


def test_from_option_makes_the_same_files_as_the_run() -> None:
    bench(*SMALL, "--providers", "torch", "--output", "first")
    bench("--from", "first/results.json", "--output", "second")
    first, second = (Path(folder, "results.csv").read_text() for folder in ("first", "second"))
    assert first == second
    assert {path.name for path in Path("first").iterdir()} == {path.name for path in Path("second").iterdir()}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"cols": ', '"columns": ', "cols is missing"),
        ('"shape": "', '"shape": 3, "_": "', "shape has a wrong value: 3"),
    ],
)
def test_a_wrong_row_of_results_is_named(old: str, new: str, message: str) -> None:
    bench(*SMALL, "--providers", "torch", "--output", "first")
    text = Path("first/results.json").read_text()
    assert old in text
    Path("changed.json").write_text(text.replace(old, new, 1))
    printed = bench("--from", "changed.json", "--output", "second", code=1)
    assert printed.startswith(f"tridal: changed.json: measurements[0].{message}")


def test_names_in_results_are_not_read_as_markup() -> None:
    bench(*SMALL, "--providers", "torch", "--output", "first")
    text = Path("first/results.json").read_text().replace('"torch",', '"[/torch]",')
    Path("changed.json").write_text(text)
    assert "[/torch]" in bench("--from", "changed.json", "--output", "second")


def test_without_matplotlib_writes_no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("bench", *SMALL, "--providers", "torch", "--output", "out")
    assert "matplotlib is not installed (pip install 'tridal[bench]')" in result.stderr
    assert Path("out", "results.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--providers", "torch.comple"], "did you mean 'torch.compile'"),
        (["--dtype", "flot32"], "did you mean 'float32'"),
        (
            ["--op", "linear_cross_entropy"],
            "does not measure 'linear_cross_entropy'; it measures softmax, log_softmax,",
        ),
        (["--op", "log_softmax", "--providers", "reference"], "'reference' has no log_softmax (known: tridal, torch, "),
        (["--direction", "forwards"], "did you mean 'forward'"),
        (["--classes", "smal"], "did you mean 'small'"),
        (["--suite", "--rows", "4"], "the suite has its own shapes"),
        (["--classes", "few", "--cols", "4"], "the suite has its own shapes"),
        (["--cols", "5:x"], "expected widths such as"),
        (["--cols", "5:4:1"], "expected widths such as"),
        (["--cols", "1:9:0"], "expected widths such as"),
        (["--cols", "0,3"], "expected widths such as"),
        (["--rows", "-4"], "--rows"),
        (["--host", "--cols", "256"], "Invalid value for --cols: --host measures calls on 8x128 in float32"),
        (["--host", "--rows", "4"], "Invalid value for --rows: --host measures"),
        (["--host", "--dtype", "bf16"], "Invalid value for --dtype: --host measures"),
        (["--host", "--direction", "forward"], "Invalid value for --direction: --host measures"),
        (["--from", "results.json", "--op", "rms_norm"], "Invalid value for --op: --from measures nothing; omit one"),
        (["--from", "results.json", "--host"], "Invalid value for --host: --from measures nothing"),
        (["--overwrite"], "Invalid value for --overwrite: name the folder with --output"),
    ],
)
def test_bad_option_value_is_a_usage_error(arguments: list[str], message: str) -> None:
    assert message in words("bench", *arguments, code=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file"),
        ("hello", "not JSON"),
        ("[]", "expected the results.json of a run"),
        ("[" * 100_000, "not JSON: maximum recursion depth exceeded"),
        ('{"format": "tridal benchmark 2"}', "date is missing; expected the results.json of a run"),
    ],
    ids=["missing", "text", "list", "deep", "empty"],
)
def test_bad_file_is_one_error_message(text: str | None, message: str) -> None:
    if text is not None:
        Path("bad.json").write_text(text)
    assert bench("--from", "bad.json", code=1).startswith(f"tridal: bad.json: {message}")


def test_help_lists_the_accepted_values() -> None:
    text = words("bench", "--help")
    for name in ("softmax", "log_softmax", *PROVIDERS, *SHAPE_CLASSES, *ITEMSIZE):
        assert name in text
