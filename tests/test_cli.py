"""Tests what all commands share: version, help, error messages, exit codes, and a torch that cannot be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tridal
from tridal.cli import app

COMMANDS = ["doctor", "plan", "check", "bench", "config"]

pytestmark = pytest.mark.usefixtures("no_settings")


def test_version_option_prints_the_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"tridal {tridal.__version__}\n"


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert all(command in result.output for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_json_option(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "--json" in result.output


def test_without_a_command_prints_the_help() -> None:
    assert "Usage" in CliRunner().invoke(app, []).output


def test_error_is_one_line_on_stderr() -> None:
    result = CliRunner().invoke(app, ["config", "--check", "nowhere.yaml"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "tridal: nowhere.yaml: cannot be read: No such file or directory\n"


@pytest.mark.parametrize("arguments", [["bench"], ["check"], ["plan", "4", "8"]], ids=" ".join)
@pytest.mark.parametrize(("option", "near"), [("op", "softmax"), ("device", "interpreter")])
def test_unknown_name_is_wrong_usage_in_every_command(arguments: list[str], option: str, near: str) -> None:
    result = CliRunner().invoke(app, [*arguments, f"--{option}", f"{near}s"], env={"COLUMNS": "200"})
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"did you mean '{near}'" in result.stderr


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a new process."""
    command = [sys.executable, "-c", "from tridal.cli import main; main()", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)


def test_error_for_a_bad_setting_names_its_source() -> None:
    result = run("check", TRIDAL_FALLBACK="perhaps")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "environment TRIDAL_FALLBACK" in result.stderr
    assert "'torch' or 'error'" in result.stderr


@pytest.mark.parametrize(("value", "exit_code"), [("1", 0), ("maybe", 1)])
def test_commands_do_not_override_torch(value: str, exit_code: int) -> None:
    code = (
        "import sys; sys.argv[0] = '/usr/bin/tridal'; import tridal.pytorch.override as o; print(len(o._active)); "
        "sys.argv[1:] = ['config']; from tridal.cli import main; main()"
    )
    environment = {**os.environ, "TRIDAL_OVERRIDE_TORCH": value, "TRIDAL_DEVICE": "interpreter"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == exit_code, result.stderr
    assert result.stdout.startswith("0\n")
    assert "Traceback" not in result.stderr


def test_module_is_the_command() -> None:
    environment = {**os.environ, "TRIDAL_OVERRIDE_TORCH": "1", "TRIDAL_DEVICE": "cpu"}
    command = [sys.executable, "-m", "tridal", "config", "--json"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["settings"]["device"]["value"] == "cpu"
    assert result.stderr == "", "importing tridal overrides torch, as for other programs"


def broken_torch(folder: Path) -> str:
    """Returns a PYTHONPATH with a torch that cannot be imported."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise OSError('libtorch_cpu.so: cannot open shared object file')\n")
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


def test_doctor_json_reports_a_broken_torch(tmp_path: Path) -> None:
    result = run("doctor", "--json", PYTHONPATH=broken_torch(tmp_path))
    assert result.returncode == 1, result.stderr
    report = json.loads(result.stdout)
    assert report["problems"] == ["torch cannot be imported: OSError: libtorch_cpu.so: cannot open shared object file"]
    assert not report["device"]["usable"]
    assert {backend["name"] for backend in report["backends"]} >= {e.name for e in tridal.registry.registered()}
    assert report["ops"] == []


def test_broken_torch_is_imported_only_once(tmp_path: Path) -> None:
    (tmp_path / "imports").write_text("")
    path = broken_torch(tmp_path)
    script = tmp_path / "torch" / "__init__.py"
    script.write_text(f"open({str(tmp_path / 'imports')!r}, 'a').write('x')\n" + script.read_text())
    assert run("doctor", PYTHONPATH=path).returncode == 1
    assert (tmp_path / "imports").read_text() == "x"


@pytest.mark.parametrize("arguments", [["check"], ["bench"], ["config"], ["plan", "4", "4"]])
def test_other_commands_fail_with_a_message_if_torch_is_broken(tmp_path: Path, arguments: list[str]) -> None:
    result = run(*arguments, PYTHONPATH=broken_torch(tmp_path))
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "tridal: torch cannot be imported: OSError: libtorch_cpu.so" in result.stderr
    assert "run `tridal doctor` for details" in result.stderr


def test_doctor_prints_why_torch_cannot_be_imported(tmp_path: Path) -> None:
    result = run("doctor", PYTHONPATH=broken_torch(tmp_path))
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "torch cannot be imported: OSError: libtorch_cpu.so" in result.stdout


def test_public_function_raises_import_error_if_torch_is_broken(tmp_path: Path) -> None:
    script = "import tridal\ntry: tridal.softmax\nexcept ImportError as error: print(error)"
    environment = {**os.environ, "PYTHONPATH": broken_torch(tmp_path)}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert "tridal.softmax needs torch, and importing that fails; see `tridal doctor`" in result.stdout
