"""The benchmark of first calls."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "first_calls.py"


def test_each_op_is_computed_with_gradients(device: Any) -> None:
    first_calls: dict[str, Any] = runpy.run_path(str(SCRIPT))
    first_calls["compute"].__globals__["ROWS"] = 2
    for op in first_calls["OPS"]:
        seconds, kernels = first_calls["measure"](op, 10, True)
        assert seconds > 0
        assert kernels >= 0


def test_a_width_is_measured_in_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []
    caches: list[str] = []

    def run(command: list[str], env: dict[str, str], **_: Any) -> Any:
        commands.append(command)
        caches.append(env["TRITON_CACHE_DIR"])
        return subprocess.CompletedProcess(command, 0, f"a warning\n[{len(commands)}.5, 3]\n")

    monkeypatch.setattr(subprocess, "run", run)
    file = tmp_path / "first.json"
    monkeypatch.setattr(sys, "argv", ["x", "--ops", "softmax", "--columns", "1000", "9000", "--json", str(file)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert [command[-2:] for command in commands] == [["softmax", "1000"]] * 2 + [["softmax", "9000"]] * 2
    assert caches[0] == caches[1] != caches[2] == caches[3]
    assert [list(row.values()) for row in json.loads(file.read_text())["results"]] == [
        ["softmax", 1000, 1.5, 3, 2.5], ["softmax", 9000, 3.5, 3, 4.5],
    ]  # fmt: skip
    assert "9,000     3.50        3             4.500" in capsys.readouterr().out
