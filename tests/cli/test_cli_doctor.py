"""Tests `tridal doctor`: its report of versions, backends, devices, settings and fallbacks, and its exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from backend_helpers import FakeBackend
from cli_helpers import run, run_json
from tridal.devices import registry, settings
from tridal.devices.checked_backend import CheckedBackend
from tridal.ops import table

pytestmark = pytest.mark.usefixtures("no_settings")


def report(*, code: int = 0) -> Any:
    return run_json("doctor", code=code)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[registry.Registered], None]:
    """Returns a function that adds a backend to those that are registered."""
    entries = registry.registered()
    return lambda entry: monkeypatch.setattr(registry, "registered", lambda: (*entries, entry))


def test_text_output_has_every_backend_and_op_with_its_fault(
    monkeypatch: pytest.MonkeyPatch, register: Callable[[registry.Registered], None]
) -> None:
    broken = table.RegisteredOp("broken_op", "vendor 1.0", None, "it has no [reference]")
    monkeypatch.setattr(table, "_entries", (*table.registered(), broken))
    register(registry.Registered("broken", "vendor 1.0", None, "it could not be loaded: SyntaxError: [oops]"))
    output = run("doctor").output
    lines = [line.split() for line in output.splitlines()]
    assert ["softmax", "yes", table.registered()[0].origin] in lines
    assert ["broken_op", "no", "vendor", "1.0", "it", "has", "no", "[reference]"] in lines
    assert "it could not be loaded: SyntaxError: [oops]" in output
    assert all(entry.name in output for entry in registry.registered())
    assert "computes its tensors" in output
    if registry.get("npu").unavailable() is not None:
        assert "tridal[npu]" in output, "brackets must not be read as markup"


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the settings choose an accelerator here")
def test_fallbacks_name_the_tensors_that_torch_computes() -> None:
    result = report()
    assert result["device"]["device"] == "cpu"
    assert result["device"]["backend"] is None
    assert any(line.startswith("torch computes cpu tensors; set TRIDAL_DEVICE=") for line in result["fallbacks"])


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TRIDAL_DEVICE", "interpretr", "did you mean 'interpreter'"),
        ("TRIDAL_DEVICE", "cpu:x", "environment TRIDAL_DEVICE: device: expected 'auto'"),
        ("TRIDAL_FALLBAK", "torch", "TRIDAL_FALLBAK"),
        ("TRIDAL_OVERRIDE_TORCH", "maybe", "environment TRIDAL_OVERRIDE_TORCH: expected 1 or 0, found 'maybe'"),
    ],
)
def test_bad_setting_is_reported_and_the_exit_code_is_1(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    settings._base = None
    output = report(code=1)
    assert message in "\n".join([*output["problems"], output["device"]["problem"]])
    assert output["device"]["usable"] is False


def test_absent_device_is_reported_with_its_source_and_the_exit_code_is_1(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = next((e.backend for e in registry.registered() if e.backend and e.backend.unavailable()), None)
    if absent is None:
        pytest.skip("every backend is available here")
    monkeypatch.setenv("TRIDAL_DEVICE", absent.name)
    settings.reload()
    device = report(code=1)["device"]
    assert device["asked"] == absent.name
    assert f"environment TRIDAL_DEVICE: device: {absent.name!r} is not available" in device["problem"]
    assert absent.install in device["problem"]
    assert "'auto'" in device["problem"]


class Faulty(FakeBackend):
    """A backend without architectures, whose properties are a function."""

    def __init__(self, properties: Callable[[int], Any]) -> None:
        super().__init__("faulty", device_type="faulty", interpreted=True)
        self.properties = properties  # type: ignore[method-assign]

    def architectures(self) -> dict[str, Any]:
        return {}


def test_an_exception_of_a_plugin_is_reported(
    register: Callable[[registry.Registered], None],
) -> None:
    def properties(index: int) -> Any:
        raise RuntimeError("the driver went away")

    backend = CheckedBackend(Faulty(properties), "vendor 1.0")
    register(registry.Registered("faulty", "vendor 1.0", backend))
    result = report()
    problem = "backend 'faulty' (vendor 1.0): properties(0) raised RuntimeError: the driver went away"
    assert problem in result["problems"]
    assert [each["name"] for each in result["backends"]] == [entry.name for entry in registry.registered()]


@pytest.mark.parametrize(
    ("metadata", "points", "reason"),
    [
        ("Name: broken", "[tridal.backends]\nno equals sign", ""),
        ("Name: broken", "[tridal.ops]\nx=y:\xff", "UnicodeDecodeError: 'utf-8' codec"),
        ("Version: 1.0", "[tridal.ops]\nx=y:z", "ValueError: the file METADATA is missing or has no name"),
        ("", "[console_scripts]\nx", None),
    ],
)
def test_plugins_with_broken_metadata_are_problems_and_those_of_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: str, points: str, reason: str | None
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("broken.py,,\n")
    for file, content in (("METADATA", metadata), ("entry_points.txt", points)):
        (info / file).write_text(f"{content}\n", encoding="latin-1")
    problems = [problem for problem in report()["problems"] if str(tmp_path) in problem]
    start = f"the plugins in {info} cannot be found: {reason}"
    assert [problem.startswith(start) for problem in problems] == [True] * (reason is not None)


def test_triton_interpret_selects_the_interpreter_and_beside_a_device_is_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    settings.reload()
    device = report()["device"]
    assert (device["source"], device["backend"]) == ("environment TRITON_INTERPRET", "interpreter")
    assert report()["notes"] == []
    monkeypatch.setenv("TRIDAL_DEVICE", "cpu")
    settings.reload()
    Path("tridal.yml").write_text("device: cpu\n")
    ignored, note = report()["notes"]
    assert ignored.startswith("the settings in tridal.yml are ignored: only a file with the name tridal.yaml is read")
    assert ignored in run("doctor").output
    assert note.startswith("TRITON_INTERPRET is set, but environment TRIDAL_DEVICE selects the device. Unset ")
