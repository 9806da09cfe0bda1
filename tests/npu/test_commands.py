"""`tridal doctor`, `plan`, `check` and `config` with the emulated NPU."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from offboard import device, driver
from tridal.cli import app

pytestmark = pytest.mark.usefixtures("default_settings")


def tridal(*arguments: str) -> dict:
    """Runs a command, checks that it exits with 0, and returns its JSON output."""
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_doctor_lists_both_devices_and_selects_the_npu_backend():
    report = tridal("doctor")
    npu = next(backend for backend in report["backends"] if backend["name"] == "npu")
    assert (npu["available"], npu["reason"]) == (True, None)
    devices = [device for device in report["devices"] if device["backend"] == "npu"]
    assert [found["index"] for found in devices] == list(range(device.DEVICES))
    first = [devices[0][key] for key in ("name", "cores", "shared_memory")]
    assert first == [device.NAME, device.VECTOR_CORES, 192 * 1024]
    assert (report["device"]["backend"], report["device"]["usable"]) == ("npu", True)
    assert report["versions"]["triton_distribution"] == "triton-ascend"


@pytest.mark.parametrize("options", [["--device", "npu"], ["--arch", "ascend910b"], ["--arch", "ascend950"], []])
def test_plan_has_32_programs_and_a_reason(options):
    report = tridal("plan", "4096", "12672", *options)
    assert (report["backend"], report["plan"]["programs"], report["plan"]["schedule"]) == ("npu", 32, "whole_row")
    assert "unified buffer" in report["plan"]["reason"]


def test_check_passes_and_launches_kernels():
    launches = len(driver.launches)
    report = tridal("check")
    assert report["passed"]
    assert report["backend"] == "npu"
    assert report["unit_test"]["difference_to_torch"] < 1e-6
    assert len(driver.launches) > launches
