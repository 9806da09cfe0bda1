"""Ctrl-C in commands: exit code 130 without a traceback, while torch is imported and in the middle of a command."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from cli_helpers import run
from processes import python
from tridal.devices import settings

INTERRUPT = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
TORCH = f"try:\n    {INTERRUPT}\n    [*range(100_000)]\nexcept KeyboardInterrupt:\n    pass  # as some libraries do\n"


@pytest.fixture
def interrupted_torch(tmp_path: Path) -> str:
    """A PYTHONPATH with a torch that is interrupted while it is imported, and that goes on."""
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "tridal").write_text("from tridal.cli import main\nmain()\n")  # as the console script
    (tmp_path / "program.py").write_text("import tridal")
    return str(tmp_path)


@pytest.mark.parametrize("program", [("tridal", "config"), ("-m", "tridal.run", "a.py")])
def test_interrupt_during_the_import_of_torch_ends_the_command(
    program: tuple[str, ...], interrupted_torch: str, tmp_path: Path
) -> None:
    paths = f"{interrupted_torch}:{Path(settings.__file__).parents[2]}"
    done = python(*program, cwd=tmp_path, code=130, PYTHONPATH=paths)
    assert (done.stdout, done.stderr) == ("", "")


def test_interrupt_during_the_import_of_torch_is_an_exception_in_other_programs(
    interrupted_torch: str, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text(INTERRUPT)
    paths = f"{interrupted_torch}:{Path(settings.__file__).parents[2]}"
    assert python("program.py", cwd=tmp_path, code=None, PYTHONPATH=paths).stderr.endswith("\nKeyboardInterrupt\n")


@pytest.mark.parametrize("arguments", [["doctor"], ["plan", "4", "8"], ["bench"]], ids=" ".join)
def test_interrupt_in_the_middle_of_a_command_ends_it(
    arguments: list[str], no_settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(settings, "current", interrupt)
    assert run(*arguments, code=130).output == ""


def test_program_of_tridal_run_gets_the_interrupt(tmp_path: Path) -> None:
    program = f"try:\n    {INTERRUPT}\n    [*range(100_000)]\nexcept KeyboardInterrupt:\n    print('caught')\n"
    (tmp_path / "program.py").write_text(program)
    done = python("-m", "tridal.run", "program.py", cwd=tmp_path, new=True, TRIDAL_DEVICE="interpreter")
    assert (done.stdout, done.stderr) == ("caught\n", "")
