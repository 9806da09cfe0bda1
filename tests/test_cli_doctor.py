"""`tridal doctor`: what it reports of versions, backends, devices, settings and fallbacks, and when it fails."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tridal.cli import app, doctor
from tridal.devices import registry, settings
from tridal.devices.types import Backend

pytestmark = pytest.mark.usefixtures("no_settings")


def report(*, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_names_versions() -> None:
    versions = report()["versions"]
    assert versions["torch"] == torch.__version__ or versions["torch"] in torch.__version__
    assert versions["python"].startswith("3.")
    assert versions["tridal"]


def test_names_every_backend_with_its_reason_or_none() -> None:
    found = {backend["name"]: backend for backend in report()["backends"]}
    for entry in registry.registered():
        told = found[entry.name]
        assert told["origin"] == entry.origin
        assert told["available"] == (told["reason"] is None)
        if not told["available"] and entry.backend is not None:
            assert told["install"] == entry.backend.install


def test_describes_the_devices_of_available_backends(backend: Backend) -> None:
    mine = [device for device in report()["devices"] if device["backend"] == backend.name]
    assert len(mine) == backend.device_count()
    assert mine[0]["name"] == backend.properties(0).name
    assert mine[0]["cores"] >= 1


def test_shows_where_settings_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDAL_FALLBACK", "error")
    settings.reload()
    found = report(code=1)  # a CPU without a backend that serves it unasked can't be used then
    assert found["settings"]["values"]["fallback"] == {"value": "error", "source": "environment TRIDAL_FALLBACK"}


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the CPU is not what the settings choose here")
def test_says_what_falls_back() -> None:
    found = report()
    assert found["device"]["device"] == "cpu"
    assert found["device"]["backend"] is None
    assert any(line.startswith("torch computes cpu tensors (TRIDAL_DEVICE=") for line in found["fallbacks"])


def test_says_which_dtypes_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Narrow:
        name, device_type, dtypes, interpreted = "narrow", "cpu", frozenset({"float32"}), False

        def unavailable(self) -> str | None:
            return None

    narrow: Any = Narrow()
    monkeypatch.setattr(registry, "registered", lambda: (registry.Registered("narrow", "in a test", narrow),))
    monkeypatch.setattr(registry, "serving", lambda kind, chosen: narrow)
    assert doctor._fallbacks() == [
        "torch computes bfloat16, float16, float64 tensors on cpu: backend 'narrow' does not"
    ]


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("interpretr", "did you mean 'interpreter'"),
        ("cpu:x", "environment TRIDAL_DEVICE: device: expected 'auto'"),
    ],
)
def test_fails_where_the_device_is_no_device(monkeypatch: pytest.MonkeyPatch, device: str, words: str) -> None:
    monkeypatch.setenv("TRIDAL_DEVICE", device)
    settings._base = None
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert words in "\n".join([*told["problems"], told["device"]["problem"]])
    assert told["device"]["usable"] is False


def test_fails_where_the_device_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = next((e.backend for e in registry.registered() if e.backend and registry.unavailable(e.backend)), None)
    if absent is None:
        pytest.skip("every backend is available here")
    monkeypatch.setenv("TRIDAL_DEVICE", absent.name)
    settings.reload()
    told = report(code=1)["device"]
    assert told["asked"] == absent.name
    assert absent.install in told["problem"]


def test_survives_bad_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIDAL_FALLBAK", "torch")
    settings._base = None
    told = report(code=1)
    assert any("TRIDAL_FALLBAK" in problem for problem in told["problems"])


def test_survives_a_plugin_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = registry.registered()[0]

    class Raising:
        name, device_type, dtypes, interpreted, install = "raising", "raising", frozenset(), True, "don't"
        options = MappingProxyType({})

        def unavailable(self) -> None:
            return None

        def device_count(self) -> int:
            raise RuntimeError("the driver went away")

    raising: Any = Raising()
    entries = (*registry.registered(), registry.Registered("raising", "somebody 1.0", raising))
    monkeypatch.setattr(registry, "registered", lambda: entries)
    told = report()
    assert entry.name in {backend["name"] for backend in told["backends"]}
    assert (
        "backend 'raising' of somebody 1.0 can't describe its devices: RuntimeError: the driver went away"
        in (told["problems"])
    )


def test_shows_a_broken_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = registry.Registered("broken", "somebody 1.0", None, "it could not be loaded: SyntaxError: [oops]")
    entries = (*registry.registered(), broken)
    monkeypatch.setattr(registry, "registered", lambda: entries)
    result = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "it could not be loaded: SyntaxError: [oops]" in result.output


def test_tells_of_two_tritons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_providing", lambda package: {"triton": "3.7.1", "triton-ascend": "3.2.0"})
    told = report()
    assert any("triton and triton-ascend are installed together" in problem for problem in told["problems"])


def test_tells_of_interpreting_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert any("TRITON_INTERPRET=1 is set" in problem for problem in report()["problems"])


def test_for_people() -> None:
    result = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for entry in registry.registered():
        assert entry.name in result.output
    assert "computes its tensors" in result.output
    assert "tridal[npu]" in result.output or registry.get("npu").unavailable() is None, "brackets are text, not markup"
