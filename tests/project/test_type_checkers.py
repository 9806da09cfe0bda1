"""Type checkers infer the types of public functions, and find misspelled names and wrong arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "helpers" / "typed_program.py"


def run(*command: str) -> None:
    result = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow("mypy and pyright read torch")
def test_mypy_accepts_a_users_program(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    cache = getattr(request.config, "cache", None)  # absent with `-p no:cacheprovider`
    folder = tmp_path if cache is None else cache.mkdir("mypy")
    run("mypy", "--cache-dir", str(folder), str(PROGRAM))


@pytest.mark.slow("mypy and pyright read torch")
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
    run("basedpyright", "--project", str(tmp_path), "--pythonpath", sys.executable)
