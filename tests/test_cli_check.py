"""`tridal check`: what it computes and prints, which device it takes, and that it fails when something is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tridal import testing
from tridal.cli import app, check
from tridal.devices import registry, settings
from tridal.devices.types import Backend
from tridal.errors import DeviceUnavailableError
from tridal.testing.cases import Case

pytestmark = pytest.mark.usefixtures("no_settings")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["check", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stdout


def test_on_a_backend(backend: Backend) -> None:
    told = json.loads(run("--json", "--device", backend.name))
    assert told["backend"] == backend.name
    assert told["passed"] is True
    assert told["unit_test"]["shape"] == [1823, 781]
    assert 0 <= told["unit_test"]["difference_to_torch"] < 1e-6
    assert [result["passed"] for result in told["unit_test"]["results"]] == [True, True]
    assert [[round(n, 4) for n in row] for row in told["worked_example"]["dx"]] == [
        [-0.0381, -0.0792, 0.1173],
        [-0.0043, -0.0202, 0.0245],
    ]


def test_for_people(backend: Backend) -> None:
    text = run("--device", backend.name)
    for words in ("largest difference to torch.softmax", "Worked example", "-0.0792", "Launch plan", "checks passed"):
        assert words in text
    assert f"--device {backend.name}" in text


def test_shows_a_plan_of_every_backend_that_compiles(backend: Backend) -> None:
    plans = {plan["backend"]: plan for plan in json.loads(run("--json", "--device", backend.name))["plans"]}
    for entry in registry.registered():
        if entry.backend is None or entry.backend.interpreted:
            continue
        told = plans[entry.name]
        assert told["arch"] == next(iter(entry.backend.architectures()))
        assert told["problem"] is None
        assert told["plan"]["programs"] >= 1


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the settings choose an accelerator here")
def test_without_an_accelerator_the_interpreter_runs() -> None:
    backend, index, why = check.choose(None)
    assert backend.interpreted
    assert index is None
    assert "device: auto, by default" in why
    assert "no backend serves cpu tensors unasked" in why


def test_takes_the_device_of_the_settings(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDAL_DEVICE", backend.name)
    settings.reload()
    chosen, _, why = check.choose(None)
    assert chosen is backend
    assert why == f"device: {backend.name}, by environment TRIDAL_DEVICE"


def test_takes_an_index(backend: Backend) -> None:
    assert check.choose(f"{backend.name}:0")[1] == 0


def test_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter: Any = next(e.backend for e in registry.registered() if e.backend is not None and e.backend.interpreted)
    monkeypatch.setattr(type(interpreter), "unavailable", lambda self: "not installed: triton")
    with pytest.raises(DeviceUnavailableError, match=r"not installed: triton.*tridal\[interpreter\]"):
        check.choose("cpu")


def test_says_so_if_nothing_can_be_checked() -> None:
    with pytest.raises(DeviceUnavailableError, match="nothing to check: --device meta; no backend serves meta tensors"):
        check.choose("meta")


def test_misspelt_device() -> None:
    result = CliRunner().invoke(app, ["check", "--device", "interpretr"])
    assert result.exit_code == 1
    assert "did you mean 'interpreter'" in result.stderr


def test_fails_when_a_kernel_is_wrong(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    import tridal

    monkeypatch.setattr(tridal, "softmax", lambda x, dim=-1, **kwargs: torch.softmax(x, dim) * 1.01)
    told = json.loads(run("--json", "--device", backend.name, code=1))
    assert told["passed"] is False
    assert told["unit_test"]["difference_to_torch"] is None
    assert "elements are off" in told["unit_test"]["results"][0]["message"]
    text = run("--device", backend.name, code=1)
    assert "FAILED softmax forward 1823x781" in text
    assert "FAILED see above" in text


def test_fails_when_a_kernel_raises(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    import tridal

    def broken(*arguments: Any, **named: Any) -> Any:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(tridal, "softmax", broken)
    text = run("--device", backend.name, code=1)
    assert text.count("raised RuntimeError: out of luck") == 3


def test_whole_suite(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [Case(op, way, (3, 5)) for op in ("softmax", "log_softmax") for way in ("forward", "backward")]  # type: ignore[arg-type]
    monkeypatch.setattr(testing, "cases", lambda backend: tuple(few))
    told = json.loads(run("--all", "--json", "--device", backend.name))
    assert [result["name"] for result in told["suite"]] == [case.name for case in few]
    text = run("--all", "--device", backend.name)
    assert "Conformance suite" in text
    assert "all 7 checks passed" in text
    monkeypatch.setattr(testing, "run_case", lambda case, backend: testing.Result(case.name, False, 1, 0, "[off]", 0))
    text = run("--all", "--device", backend.name, code=1)
    assert "FAILED softmax forward 3x5 dim=-1 float32: [off]" in text


def test_in_a_process_of_its_own(backend: Backend) -> None:
    start = time.perf_counter()
    command = [sys.executable, "-c", "from tridal.cli import main; main()", "check", "--device", backend.name]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "all 3 checks passed" in result.stdout
    assert time.perf_counter() - start < 60
