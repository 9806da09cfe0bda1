"""Pyright infers the types of public functions and finds wrong names and arguments, as mypy does in `make lint`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "helpers" / "typed_program.py"


@pytest.mark.nightly("make lint, in which mypy checks the same program")
def test_pyright_accepts_a_users_program(tmp_path: Path) -> None:
    """basedpyright is pyright with Node.js in its wheels. The mode "standard" has pyright's own rules."""
    pytest.importorskip("basedpyright")
    settings = {
        "include": [str(PROGRAM)],
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "standard",
        "pythonVersion": "3.10",
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--project", str(tmp_path), "--pythonpath", sys.executable]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
