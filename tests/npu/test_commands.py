"""`tridal doctor`, `plan`, `check` and `config` with an npu device, which is emulated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from offboard import board, device
from tridal.cli import app
from tridal.devices import settings

CONFIGS = Path(__file__).parents[2] / "configs"


pytestmark = pytest.mark.usefixtures("own_settings")


def tridal(*arguments: str) -> dict:
    """What a command prints as JSON, and that it exits with 0."""
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_doctor_sees_the_devices_and_chooses_one():
    report = tridal("doctor")
    npu = next(backend for backend in report["backends"] if backend["name"] == "npu")
    assert npu["available"]
    assert npu["reason"] is None
    devices = [device for device in report["devices"] if device["backend"] == "npu"]
    assert [found["index"] for found in devices] == list(range(device.DEVICES))
    assert devices[0]["name"] == device.NAME
    assert devices[0]["cores"] == device.VECTOR_CORES
    assert devices[0]["shared_memory"] == 192 * 1024
    assert report["device"]["backend"] == "npu"
    assert report["device"]["usable"]
    assert report["versions"]["triton_distribution"] == "triton-ascend"


@pytest.mark.parametrize("where", [["--device", "npu"], ["--arch", "ascend910b"], ["--arch", "ascend950"], []])
def test_plan(where):
    report = tridal("plan", "4096", "12672", *where)
    assert report["backend"] == "npu"
    assert report["plan"]["programs"] == 32
    assert report["plan"]["algorithm"] == "tile"
    assert "unified buffer" in report["plan"]["reason"]


def test_plan_is_for_the_programs_that_the_file_sets(monkeypatch):
    monkeypatch.setenv("TRIDAL_CONFIG", str(CONFIGS / "npu.yaml"))
    settings.reload()
    assert tridal("plan", "4096", "12672")["plan"]["programs"] == device.VECTOR_CORES


def test_check_runs_the_unit_test_and_the_worked_example():
    launches = len(board.launches)
    report = tridal("check")
    assert report["passed"]
    assert report["backend"] == "npu"
    assert report["unit_test"]["difference_to_torch"] < 1e-6
    assert len(board.launches) > launches


def test_config_accepts_the_file_for_npus():
    done = CliRunner().invoke(app, ["config", "--check", str(CONFIGS / "npu.yaml")])
    assert done.exit_code == 0, done.output
