"""Tests what all commands share: version, help, error messages, exit codes, and a torch that cannot be imported."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import tridal
from cli_helpers import run, run_process, words

COMMANDS = ["doctor", "plan", "check", "bench", "config"]

pytestmark = pytest.mark.usefixtures("no_settings")


def test_help_names_every_command_and_every_command_has_a_json_option() -> None:
    output = words("--help")
    for command in COMMANDS:
        assert command in output
        assert "--json" in words(command, "--help")


def test_error_is_one_line_on_stderr() -> None:
    result = run("config", "--check", "nowhere.yaml", code=1)
    assert result.stdout == ""
    assert result.stderr == "tridal: nowhere.yaml: cannot be read: No such file or directory\n"


@pytest.mark.parametrize("arguments", [["bench"], ["check"], ["plan", "4", "8"]], ids=" ".join)
@pytest.mark.parametrize(("option", "near"), [("op", "softmax"), ("device", "interpreter")])
def test_unknown_name_is_wrong_usage_in_every_command(arguments: list[str], option: str, near: str) -> None:
    result = run(*arguments, f"--{option}", f"{near}s", code=2)
    assert result.stdout == ""
    assert f"did you mean '{near}'" in result.stderr


@pytest.mark.parametrize(("value", "exit_code"), [("1", 0), ("maybe", 1)])
def test_commands_do_not_override_torch(value: str, exit_code: int) -> None:
    program = (
        "import sys; sys.argv[0] = '/usr/bin/tridal'; from tridal.pytorch.torch import override; "
        "print(len(override._active)); "
        "sys.argv[1:] = ['config']; from tridal.cli import main; main()"
    )
    variables = {"TRIDAL_OVERRIDE_TORCH": value, "TRIDAL_DEVICE": "interpreter"}
    assert run_process(python=("-c", program), code=exit_code, **variables).stdout.startswith("0\n")


def test_module_is_the_command() -> None:
    variables = {"TRIDAL_OVERRIDE_TORCH": "1", "TRIDAL_DEVICE": "cpu"}
    done = run_process("config", "--json", python=("-m", "tridal"), **variables)
    assert json.loads(done.stdout)["settings"]["device"]["value"] == "cpu"
    assert done.stderr == "", "importing tridal overrides torch, as for other programs"


@pytest.fixture
def broken_torch(tmp_path: Path) -> str:
    """A PYTHONPATH with a torch that cannot be imported, and that writes a letter to a file when it is tried."""
    (tmp_path / "torch").mkdir()
    count = f"open({str(tmp_path / 'imports')!r}, 'a').write('x')"
    error = "raise OSError('libtorch_cpu.so: cannot open shared object file')"
    (tmp_path / "torch" / "__init__.py").write_text(f"{count}\n{error}\n")
    return os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])


def test_doctor_reports_a_broken_torch_and_imports_it_only_once(tmp_path: Path, broken_torch: str) -> None:
    report = json.loads(run_process("doctor", "--json", code=1, PYTHONPATH=broken_torch).stdout)
    assert (tmp_path / "imports").read_text() == "x"
    assert report["problems"] == ["torch cannot be imported: OSError: libtorch_cpu.so: cannot open shared object file"]
    assert not report["device"]["usable"]
    assert {backend["name"] for backend in report["backends"]} >= {e.name for e in tridal.registry.registered()}
    assert report["ops"] == []
    text = run_process("doctor", code=1, PYTHONPATH=broken_torch).stdout
    assert "torch cannot be imported: OSError: libtorch_cpu.so" in text


@pytest.mark.parametrize("arguments", [["config"], ["plan", "4", "4"]])
def test_other_commands_fail_with_a_message_if_torch_is_broken(broken_torch: str, arguments: list[str]) -> None:
    error = run_process(*arguments, code=1, PYTHONPATH=broken_torch).stderr
    assert "tridal: torch cannot be imported: OSError: libtorch_cpu.so" in error
    assert "run `tridal doctor` for details" in error
