"""Tests `tridal check`: its report, the device that it chooses, and its exit code when a check fails."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from torch_versions import compiles
from tridal import testing
from tridal.cli import app, check, output
from tridal.devices import registry, settings
from tridal.devices.types import Backend
from tridal.errors import DeviceUnavailableError
from tridal.pytorch.functions import FUNCTIONS
from tridal.testing.cases import Case

pytestmark = pytest.mark.usefixtures("no_settings")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["check", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stdout


def test_json_report_of_a_passing_backend(backend: Backend) -> None:
    report = json.loads(run("--json", "--device", backend.name))
    assert report["backend"] == backend.name
    assert report["passed"] is True
    assert report["unit_test"]["shape"] == [1823, 781]
    assert 0 <= report["unit_test"]["difference_to_torch"] < 1e-6
    assert [result["passed"] for result in report["unit_test"]["results"]] == [True, True]
    assert [[round(n, 4) for n in row] for row in report["worked_example"]["dx"]] == [
        [-0.0381, -0.0792, 0.1173],
        [-0.0043, -0.0202, 0.0245],
    ]


def test_text_report_has_every_section(backend: Backend) -> None:
    output = run("--device", backend.name)
    for text in ("largest difference from torch.softmax", "Worked example", "-0.0792", "Launch plan", "checks passed"):
        assert text in output
    assert f"--device {backend.name}" in output


def test_report_has_a_plan_of_every_compiling_backend(backend: Backend) -> None:
    plans = {plan["backend"]: plan for plan in json.loads(run("--json", "--device", backend.name))["plans"]}
    for entry in registry.registered():
        if entry.backend is None or entry.backend.interpreted:
            continue
        planned = plans[entry.name]
        assert planned["arch"] == next(iter(entry.backend.architectures()))
        if not compiles(entry.name):
            continue  # this Triton compiles for AMD GPUs with a linker of ROCm
        assert planned["problem"] is None
        assert planned["plan"]["programs"] >= 1


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the settings choose an accelerator here")
def test_without_an_accelerator_checks_the_interpreter() -> None:
    backend, index, why = check.choose(None)
    assert backend.interpreted
    assert index is None
    assert why == (
        "device 'auto' (from default): by default, no backend computes cpu tensors, "
        f"so backend {backend.name!r} runs the kernels in Triton's interpreter"
    )


def test_checks_the_device_of_the_settings(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDAL_DEVICE", backend.name)
    settings.reload()
    chosen, _, why = check.choose(None)
    assert chosen is backend
    assert why == f"device {backend.name!r} (from environment TRIDAL_DEVICE)"


def test_device_name_may_have_an_index(backend: Backend) -> None:
    assert check.choose(f"{backend.name}:0")[1] == 0


def test_error_names_the_missing_package_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter: Any = next(e.backend for e in registry.registered() if e.backend is not None and e.backend.interpreted)
    monkeypatch.setattr(type(interpreter), "unavailable", lambda self: "not installed: triton")
    with pytest.raises(DeviceUnavailableError, match=r"not installed: triton.*tridal\[interpreter\]"):
        check.choose("cpu")


def test_device_without_a_backend_is_an_error() -> None:
    message = "nothing to check with --device meta: by default, no backend computes meta tensors"
    with pytest.raises(DeviceUnavailableError, match=message):
        check.choose("meta")


def test_unknown_device_suggests_a_similar_name() -> None:
    result = CliRunner().invoke(app, ["check", "--device", "interpretr"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "did you mean 'interpreter'" in result.stderr


def test_fails_when_a_kernel_is_wrong(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FUNCTIONS, "softmax", lambda x, dim=-1, **kwargs: torch.softmax(x, dim) * 1.01)
    report = json.loads(run("--json", "--device", backend.name, code=1))
    assert report["passed"] is False
    assert report["unit_test"]["difference_to_torch"] is None
    assert "elements are off" in report["unit_test"]["results"][0]["message"]
    output = run("--device", backend.name, code=1)
    assert "FAILED softmax forward 1823x781" in output
    assert "FAILED 3 of 3 checks, see the messages above" in output


def test_fails_when_a_kernel_raises(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError("out of luck")

    monkeypatch.setitem(FUNCTIONS, "softmax", raise_error)
    output = run("--device", backend.name, code=1)
    assert output.count("raised RuntimeError: out of luck") == 3


def test_all_option_runs_the_conformance_suite(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [Case(op, direction, (3, 5)) for op in ("softmax", "log_softmax") for direction in ("forward", "backward")]  # type: ignore[arg-type]
    monkeypatch.setattr(testing, "cases", lambda backend, ops: tuple(cases[:3]))
    monkeypatch.setattr(testing, "search_plans", lambda *_: testing.PlanSearch(tuple(cases[2:]), 10, (), ()))
    report = json.loads(run("--all", "--json", "--device", backend.name))
    assert [result["name"] for result in report["suite"]] == [case.name for case in cases]
    output = run("--all", "--device", backend.name)
    assert "Conformance suite" in output
    assert "searched 10 plans for changes, and found 2 cases on both sides of them" in output
    assert "all 11 checks passed" in output
    monkeypatch.setattr(testing, "run_case", lambda case, backend: testing.Result(case.name, False, 1, 0, "[off]", 0))
    output = run("--all", "--device", backend.name, code=1)
    assert "FAILED softmax forward 3x5 dim=-1 float32: [off]" in output


def test_schedule_that_is_not_tested_is_a_failure(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("softmax", "forward", (3, 5))
    monkeypatch.setattr(testing, "cases", lambda backend, ops: (case,))
    search = testing.PlanSearch((), 10, ("peel",), ("softmax backward 64x64 dim=-1 float16",))
    monkeypatch.setattr(testing, "search_plans", lambda *_: search)
    output = run("--all", "--device", backend.name, code=1)
    assert "FAILED the backend lists 'peel', but no plan uses it" in output
    assert "1 kind of calls, from softmax backward 64x64 dim=-1 float16" in output
    report = json.loads(run("--all", "--json", "--device", backend.name, code=1))
    assert report["plan_search"] == {"cases": 0, "plans": 10, "not_reached": ["peel"], "skipped": [*search.skipped]}


def test_max_compiled_option_limits_the_search(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []

    def search_plans(backend: Backend, ops: Any, max_compiled: int, track: Any) -> testing.PlanSearch:
        limits.append(max_compiled)
        return testing.PlanSearch((Case("softmax", "forward", (3, 5)),), 1, (), ())

    monkeypatch.setattr(testing, "cases", lambda backend, ops: ())
    monkeypatch.setattr(testing, "search_plans", search_plans)
    run("--all", "--device", backend.name, "--max-compiled", "7")
    run("--all", "--device", backend.name)
    assert limits == [7, 400]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--all", "--max-compiled", "-5"], "--max-compiled"),
        (["--max-compiled", "5"], "Invalid value for --max-compiled: it limits the suite; add --all or --op"),
    ],
)
def test_wrong_or_ignored_limit_is_a_usage_error(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["check", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_op_without_a_search_is_described_in_plain_words(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "cases", lambda backend, ops: (Case("softmax", "forward", (3, 5)),))
    output = run("--op", "rms_norm", "--device", backend.name)
    assert "plans were not searched for changes, because only plans of ops of one tensor are" in output
    assert "0 cases" not in output


def test_progress_is_printed_to_stderr_if_that_is_no_terminal(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = tuple(Case("softmax", "forward", (3, cols)) for cols in (5, 6))
    monkeypatch.setattr(testing, "cases", lambda backend, ops: cases)
    monkeypatch.setattr(testing, "search_plans", lambda *_: testing.PlanSearch((), 1, (), ()))
    monkeypatch.setattr(output, "SECONDS_PER_LINE", 0)
    result = CliRunner().invoke(app, ["check", "--all", "--device", backend.name])
    assert [line for line in result.stderr.splitlines() if line.startswith("conformance")] == [
        "conformance: 0 of 2: softmax forward 3x5 dim=-1 float32",
        "conformance: 1 of 2: softmax forward 3x6 dim=-1 float32",
    ]
    monkeypatch.setattr(output, "SECONDS_PER_LINE", 3600)
    assert CliRunner().invoke(app, ["check", "--all", "--device", backend.name]).stderr == ""


def test_op_option_runs_the_suite_of_these_ops_only(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[Any] = []

    def record(backend: Backend, ops: Any) -> tuple[Case, ...]:
        requested.append(ops)
        return (Case("log_softmax", "forward", (3, 5)),)

    monkeypatch.setattr(testing, "cases", record)
    monkeypatch.setattr(
        testing, "search_plans", lambda backend, ops, *_: testing.PlanSearch(record(backend, ops), 1, (), ())
    )
    report = json.loads(run("--op", "log_softmax", "--op", "softmax", "--json", "--device", backend.name))
    assert requested == [["log_softmax", "softmax"]] * 2
    assert len(report["suite"]) == 1
    assert "Conformance suite" in run("--op", "log_softmax", "--device", backend.name)


def test_wrong_declaration_is_a_failure_and_ends_the_check_before_the_suite(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cases(*arguments: Any) -> None:
        raise AssertionError("the suite must not run")

    wrong = testing.Result("softmax declaration maths in torch.float32", False, 0.0, 0.0, "a [wrong] gradient", 0.0)
    monkeypatch.setattr(testing, "check_declarations", lambda ops: (wrong,))
    monkeypatch.setattr(testing, "cases", cases)
    output = run("--op", "softmax", "--device", backend.name, code=1)
    assert "FAILED softmax declaration maths in torch.float32: a [wrong] gradient" in output
    assert "The conformance suite was not run, because a declaration is wrong" in output
    assert "FAILED 1 of 4 checks" in output
    report = json.loads(run("--all", "--json", "--device", backend.name, code=1))
    assert [result["message"] for result in report["declarations"]] == ["a [wrong] gradient"]
    assert "suite" not in report


def test_unknown_op_suggests_a_similar_name() -> None:
    result = CliRunner().invoke(app, ["check", "--op", "log_sofmax"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "did you mean 'log_softmax'" in result.stderr


def test_new_process_finishes_within_a_minute(backend: Backend) -> None:
    start = time.perf_counter()
    command = [sys.executable, "-c", "from tridal.cli import main; main()", "check", "--device", backend.name]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "all 3 checks passed" in result.stdout
    assert time.perf_counter() - start < 60
