"""Tests of the Ascend path without a board. They need triton-ascend in an environment of its own: `make test-npu`.

Elsewhere nothing here is collected: triton-ascend takes the place of triton, so that one environment can't hold both.
Nor is anything where torch_npu is installed: `pytest --backend npu` has the real device then, and no emulated one.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def _triton_is_ascend() -> bool:
    triton = importlib.util.find_spec("triton")
    folders = () if triton is None else triton.submodule_search_locations or ()
    return any(Path(folder, "backends", "ascend").is_dir() for folder in folders)


READY = _triton_is_ascend() and importlib.util.find_spec("torch_npu") is None
collect_ignore_glob = [] if READY else ["test_*.py"]

if READY:
    sys.path.insert(0, str(HERE.parents[1] / "verify"))

COUNTED = ("kernels compiled", "cases executed", "mutants caught", "mutants", "conformance cases")


def pytest_configure(config: pytest.Config) -> None:
    """Before anything asks for backends: an npu device for torch, and a driver for triton-ascend that executes here."""
    if not READY:
        return
    import torch

    from offboard import board, compiler, device, native

    torch.set_num_threads(1)  # small tensors, and other test processes beside this one
    if "OFFBOARD_CACHE" in os.environ:
        native.keep_in(Path(os.environ["OFFBOARD_CACHE"]))
    kernels = tempfile.TemporaryDirectory(prefix="offboard-")  # what triton-ascend compiles is compiled anew every time
    config.add_cleanup(kernels.cleanup)
    compiler.stop_at_linalg(Path(kernels.name))
    device.install()
    board.install()


@pytest.fixture
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """No settings but a test's own."""
    from tridal.devices import settings

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("TRIDAL_DEVICE", raising=False)
    settings.reload()
    yield
    monkeypatch.undo()
    settings.reload()


@pytest.fixture
def count(record_property):
    """count("cases executed", 12): adds to what is printed at the end."""

    def add(what: str, number: int) -> None:
        assert what in COUNTED
        record_property(what, number)

    return add


def pytest_terminal_summary(terminalreporter) -> None:
    totals = dict.fromkeys(COUNTED, 0)
    for report in terminalreporter.getreports(""):
        if report.when == "teardown":  # by then a test has said all
            for name, value in report.user_properties:
                if name in totals:
                    totals[name] += value
    if not any(totals.values()):
        return
    line = terminalreporter.write_line
    terminalreporter.section("the Ascend path, off the board")
    line(f"{totals['kernels compiled']} kernels compiled by triton-ascend to linalg, without CANN")
    line(f"{totals['cases executed']} cases executed from that linalg on this processor, and held to float64")
    line(f"{totals['mutants caught']} of {totals['mutants']} mutants caught")
    line(f"{totals['conformance cases']} cases of the conformance suite passed on an emulated npu device, end to end")
    line("Compiled by triton-ascend and executed off the board; not run on an NPU.")
