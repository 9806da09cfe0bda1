"""Output that cannot be written, and files that cannot be read: one sentence or none, an exit code, no traceback."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from cli_helpers import COMMAND
from processes import python
from tridal.cli import app

pytestmark = [
    pytest.mark.usefixtures("no_settings"),
    pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full"),
]
COMMANDS = [["config"], ["config", "--json"], ["--help"], ["plan", "4", "8", "--device", "interpreter", "--source"]]
FULL = "tridal: the output cannot be written: No space left on device\n"


@contextlib.contextmanager
def full_disk() -> Iterator[TextIO]:
    """A file on a disk without space. Python would flush it when it ends, so the test flushes it, too."""
    with open("/dev/full", "w") as file:
        yield file
        file.flush()


@contextlib.contextmanager
def closed_pipe() -> Iterator[TextIO]:
    """A pipe whose reader has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as file:
        yield file
        file.flush()


def exit_code(arguments: list[str], stdout: TextIO | None) -> object:
    """Runs a command in this process, as the console script does."""
    with contextlib.redirect_stdout(stdout), pytest.raises(SystemExit) as raised:
        app(arguments, prog_name="tridal")
    return raised.value.code


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_full_disk_is_one_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with full_disk() as stdout:
        assert exit_code(arguments, stdout) == 1
    assert capsys.readouterr() == ("", FULL)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_closed_pipe_ends_the_command_without_a_message(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with closed_pipe() as stdout:
        assert exit_code(arguments, stdout) == 141
    assert capsys.readouterr() == ("", "")


NOISY = """
import ctypes, os, subprocess, sys
import tridal_interpreter

def make_noise(where):
    print(f"{where}: print")
    sys.__stdout__.write(f"{where}: stream\\n")
    os.write(1, f"{where}: descriptor\\n".encode())
    ctypes.CDLL(None).puts(f"{where}: C library".encode())
    subprocess.run(["echo", f"{where}: child"])

class Noisy(type(tridal_interpreter.backend)):
    name = "noisy"

    def unavailable(self):
        make_noise("member")

make_noise("import")
backend = Noisy()
"""


def test_stdout_has_nothing_that_a_plugin_prints(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    info = tmp_path / "noisy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noisy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tridal.backends]\nnoisy = noisy:backend\n")
    done = python(*COMMAND, "plan", "4", "8", "--source", path=[tmp_path], TRIDAL_DEVICE="noisy")
    compile(done.stdout, "kernel", "exec")
    ways = {"print", "stream", "descriptor", "C library", "child"}
    assert {*done.stderr.splitlines()} == {f"{place}: {way}" for place in ("import", "member") for way in ways}
