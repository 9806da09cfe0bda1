"""Runs the command line: in this process, or in a new one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from typer.testing import CliRunner

from processes import python as run_python
from tridal.cli import app


def run(*arguments: str, code: int = 0, width: str | None = "200") -> Any:
    """Runs a command. Returns click's result, with `stdout`, `stderr` and `output`, and checks the exit code."""
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": width})
    assert result.exit_code == code, result.output
    return result


def run_json(*arguments: str, code: int = 0) -> Any:
    """Runs a command with the option --json. Returns what it prints."""
    return json.loads(run(*arguments, "--json", code=code).stdout)


def words(*arguments: str, code: int = 0) -> str:
    """Runs a command. Returns the words that it prints in one line, without frames."""
    return " ".join(run(*arguments, code=code).output.replace("│", " ").split())


COMMAND = ("-c", "from tridal.cli import main; main()")


def run_process(
    *arguments: str, python: Sequence[str] = COMMAND, code: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a new process, or Python with other arguments. Checks the exit code."""
    done = run_python(*python, *arguments, code=code, **variables)
    assert "Traceback" not in done.stderr
    return done
