"""`tridal doctor`, `plan`, `check` and `config` with the emulated NPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from offboard import device, driver
from tridal.cli import app
from tridal.devices import settings

CONFIGS = Path(__file__).parents[2] / "configs"


pytestmark = pytest.mark.usefixtures("default_settings")


def tridal(*arguments: str) -> dict:
    """Runs a command, checks that it exits with 0, and returns its JSON output."""
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_doctor_lists_both_devices_and_selects_the_npu_backend():
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


@pytest.mark.parametrize("options", [["--device", "npu"], ["--arch", "ascend910b"], ["--arch", "ascend950"], []])
def test_plan_has_32_programs_and_a_reason(options):
    report = tridal("plan", "4096", "12672", *options)
    assert report["backend"] == "npu"
    assert report["plan"]["programs"] == 32
    assert report["plan"]["schedule"] == "whole_row"
    assert "unified buffer" in report["plan"]["reason"]


def test_plan_has_the_number_of_programs_of_the_settings_file(monkeypatch):
    monkeypatch.setenv("TRIDAL_CONFIG", str(CONFIGS / "npu.yaml"))
    settings.reload()
    assert tridal("plan", "4096", "12672")["plan"]["programs"] == device.VECTOR_CORES


def test_check_passes_and_launches_kernels():
    launches = len(driver.launches)
    report = tridal("check")
    assert report["passed"]
    assert report["backend"] == "npu"
    assert report["unit_test"]["difference_to_torch"] < 1e-6
    assert len(driver.launches) > launches


def test_config_accepts_the_settings_file_for_npus():
    result = CliRunner().invoke(app, ["config", "--check", str(CONFIGS / "npu.yaml")])
    assert result.exit_code == 0, result.output
