"""What the pages say is so: their Python runs, commands exist, links lead somewhere, and a session repeats."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import tridal
from tridal.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)|!\[[^\]]*\]\((?P<image>[^)\s]+)\)")
TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> Iterator[str]:
    return (found["text"] for found in BLOCK.finditer(page.read_text()) if found["language"] in languages)


def prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


with_python = [page for page in PAGES if any(blocks(page, "python"))]


READERS = """
import types, torch, tridal
x = torch.randn(4, 8)
scores, mask, d = torch.randn(2, 3, 8, 8), torch.ones(8, 8, dtype=torch.bool), 64
batch = {"input": torch.randn(4, 8, requires_grad=True), "target": torch.arange(4)}
def model(**batch): return types.SimpleNamespace(loss=torch.nn.functional.cross_entropy(**batch))
"""
"""What a page may take for granted as the reader's own."""


@pytest.mark.parametrize("page", with_python, ids=name)
def test_python_runs(page: Path, tmp_path: Path) -> None:
    """Every ```python block, one after the other, in a process of its own; errors are told with the page's lines."""
    text, program = page.read_text(), READERS
    for found in BLOCK.finditer(text):
        if found["language"] == "python":
            block = "\n" * text.count("\n", 0, found.start("text")) + found["text"]
            program += f"exec(compile({block!r}, {str(page)!r}, 'exec', dont_inherit=True))\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for found in LINK.finditer(prose(page)):
        target = found["target"] or found["image"]
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.is_relative_to(ROOT), f"{target} leads out of the repository"
        assert there.exists(), f"{target} leads nowhere"
        if anchor:
            assert anchor in anchors(there), f"{target}: {name(there)} has no such heading"


def test_every_page_can_be_found_from_the_readme() -> None:
    linked = {found["target"] for found in LINK.finditer(prose(PAGES[0]))}
    assert {name(page) for page in PAGES[1:]} <= linked


def commands(page: Path) -> Iterator[list[str]]:
    """Words of every command that a page gives: lines that begin with $ in blocks, and `tridal ...` in the prose."""
    for text in blocks(page, "console"):
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                yield shlex.split(line[2:], comments=True)
    for text in re.findall(r"`((?:tridal|make) [^`]+)`", prose(page)):
        yield shlex.split(text.partition("#")[0])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_exist(page: Path) -> None:
    targets = set(TARGET.findall("\n".join(file.read_text() for file in [ROOT / "Makefile", *ROOT.glob("*.mk")])))
    for words in commands(page):
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words[:1] == ["make"]:
            assert {word for word in words[1:] if "=" not in word} <= targets, words
        if words[:1] == ["tridal"]:
            check_tridal(words[1:])


def check_tridal(words: list[str]) -> None:
    """Has such a command and such options; what stands for something of the reader's (ROWS, ...) is not looked at."""
    group: Any = typer.main.get_command(app)
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    known = [*group.params]
    if not words[0].startswith("-"):
        command = group.commands.get(words[0])
        assert command is not None, f"there is no command tridal {words[0]}"
        known += command.params
    names = {option for parameter in known for option in parameter.opts} | {"--help", "-h"}
    assert set(options) <= names, f"tridal {' '.join(words)}"


def test_the_plugin_on_the_page_is_the_one_that_is_tested() -> None:
    shown = list(blocks(ROOT / "docs" / "add-a-backend.md", "python", "toml"))
    for file in ("tridal_toy.py", "pyproject.toml"):
        assert (ROOT / "tests" / "plugin" / file).read_text() in shown, f"{file} is not on the page as it is"


def test_the_debugging_session_repeats(tmp_path: Path) -> None:
    """The page's script, its breakpoint() after the line that it names, and its commands give what it shows."""
    page = ROOT / "docs" / "debugging.md"
    script = next(blocks(page, "python"))
    session = next(text for text in blocks(page, "console") if "(Pdb)" in text).partition("\n")[2]
    line = re.search(r"after the line\s`([^`]+)`", prose(page))
    assert line is not None
    shutil.copytree(Path(tridal.__file__).parent, tmp_path / "tridal")
    kernels = tmp_path / "tridal" / "kernels" / "softmax.py"
    before, found, after = kernels.read_text().partition(f"            {line[1]}\n")
    assert found, f"the kernels have no line {line[1]}"
    kernels.write_text(f"{before}{found}            breakpoint()\n{after}")
    behind = before.count("\n") + 3  # from one on, where Python stops before 3.13: behind breakpoint()
    assert f"softmax.py({behind})forward()\n-> {after.partition(chr(10))[0].strip()}\n" in session
    assert f"softmax.py:{behind - 1}, " in page.read_text(), "the same line, where no breakpoint() is"

    typed = re.findall(r"^\(Pdb\) (.*)$", session, re.MULTILINE)
    told = subprocess.run(
        [sys.executable, "-c", script],
        input="\n".join(typed) + "\n",
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert told.returncode == 0, told.stderr
    shown = re.sub(r"^\(Pdb\) .*\n", "(Pdb) ", session, flags=re.MULTILINE)  # input is not echoed
    assert essence(told.stdout) == essence(shown)


def essence(session: str) -> str:
    """Without the line that pdb stands at, which depends on Python's release, and last digits, which do on the CPU."""
    session = re.sub(r"^> .*\n-> .*\n", "", session, flags=re.MULTILINE)
    session = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.5f}", session)
    return re.sub(r"\s+", " ", session)
