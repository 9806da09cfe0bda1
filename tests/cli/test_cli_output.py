"""Output that cannot be written, and files that cannot be read: one sentence or none, an exit code, no traceback."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from rich.console import Console

from cli_helpers import COMMAND, run
from processes import python
from tridal.cli import app, output
from tridal.devices import settings

pytestmark = [
    pytest.mark.usefixtures("no_settings"),
    pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full"),
]
COMMANDS = [
    ["doctor"], ["doctor", "--json"], ["config"], ["config", "--json"], ["config", "--check", "good.yaml"],
    ["plan", "4", "8", "--device", "interpreter"], ["plan", "4", "8", "--device", "interpreter", "--json"],
]  # fmt: skip
HELP = [["--help"], ["plan", "--help"], ["--version"]]
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
    Path("good.yaml").write_text("device: cpu\n")
    settings.reload()
    with contextlib.redirect_stdout(stdout), pytest.raises(SystemExit) as raised:
        app(arguments, prog_name="tridal")
    return raised.value.code


@pytest.mark.parametrize("arguments", COMMANDS + HELP, ids=" ".join)
def test_full_disk_is_one_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with full_disk() as stdout:
        assert exit_code(arguments, stdout) == 1
    assert capsys.readouterr() == ("", FULL)


PLAN = ("plan", "1823", "781", "--arch", "910b")


@pytest.mark.parametrize("arguments", [("doctor",), ("config",), PLAN], ids=" ".join)
def test_lines_of_a_file_have_no_padding_and_tables_fit_in_120_columns(arguments: tuple[str, ...]) -> None:
    wide, text = run(*arguments, width="1000").stdout, run(*arguments, width=None).stdout
    lines = text.splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert text.replace("─", "").split() == wide.replace("─", "").split()
    assert arguments != PLAN or 100 < max(map(len, lines)) <= 120


@pytest.mark.parametrize("command", [[], ["doctor"], ["plan"], ["check"], ["bench"], ["config"]], ids=str)
def test_help_fits_in_the_width_and_is_not_cut(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for columns, most in (("60", 60), ("80", 80), ("0", 80), ("", 80)):
        monkeypatch.setenv("COLUMNS", columns)
        with pytest.raises(SystemExit):  # not by `run`, because click's test runner sets the width
            app([*command, "--help"], prog_name="tridal")
        text = capsys.readouterr().out
        assert 50 < max(map(len, text.splitlines())) <= most
        texts.append("".join(text.replace("[ARGS]...", "").split()))
    assert texts == texts[:1] * 4
    assert "..." not in texts[0]
    assert "…" not in texts[0]


@pytest.mark.parametrize("width", ["0", "1", "-5", "wide"])
def test_width_that_is_no_width_loses_nothing(width: str) -> None:
    text = run(*PLAN, width=width).stdout
    assert "".join(text.split()) == "".join(run(*PLAN).stdout.split())
    assert 39 <= max(map(len, text.splitlines()[1:])) <= 120


@pytest.mark.parametrize("arguments", COMMANDS + HELP, ids=" ".join)
def test_closed_pipe_ends_the_command_without_a_message(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with closed_pipe() as stdout:
        assert exit_code(arguments, stdout) == 141
    assert capsys.readouterr() == ("", "")


def test_stderr_that_cannot_be_written_is_no_traceback() -> None:
    code: object = None
    with contextlib.ExitStack() as files:
        files.enter_context(contextlib.suppress(OSError))  # the end of the block flushes stderr, which raises
        stderr, stdout = files.enter_context(open("/dev/full", "w")), files.enter_context(full_disk())
        with contextlib.redirect_stderr(stderr):
            code = exit_code(["config"], stdout)
    assert code == 1


def test_stdout_that_is_closed_is_no_error() -> None:
    assert exit_code(["config"], None) == 0


def test_error_of_a_file_gives_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised, output.file_errors():
        Path("no/such/folder").mkdir()
    assert raised.value.code == 1
    assert capsys.readouterr().err == "tridal: no/such/folder: No such file or directory\n"


def test_python_prints_nothing_when_it_ends() -> None:
    full = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); from tridal.cli import main; main()"
    assert python("-c", full, "config", code=1).stderr == FULL


def test_long_values_of_a_grid_are_continued_in_the_next_line() -> None:
    console = Console(file=io.StringIO(), width=30)
    console.print(output.grid(("name", "x" * 50), ("y" * 40, "value")))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert (text.count("x"), text.count("y")) == (50, 40)
    assert "value" in text
    assert "" not in map(str.strip, text.splitlines()), "there are no empty lines between rows"


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


@pytest.mark.parametrize(
    "arguments",
    [("doctor", "--json"), ("config", "--json"), ("plan", "4", "8", "--json"), ("plan", "4", "8", "--source")],
    ids=" ".join,
)
def test_stdout_has_nothing_that_a_plugin_prints(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    info = tmp_path / "noisy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noisy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tridal.backends]\nnoisy = noisy:backend\n")
    done = python(*COMMAND, *arguments, path=[tmp_path], TRIDAL_DEVICE="noisy")
    if "--json" in arguments:
        json.loads(done.stdout)
    else:
        compile(done.stdout, "kernel", "exec")
    ways = {"print", "stream", "descriptor", "C library", "child"}
    places = ("import",) if "config" in arguments else ("import", "member")
    assert {*done.stderr.splitlines()} == {f"{place}: {way}" for place in places for way in ways}
