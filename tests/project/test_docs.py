"""Checks the documentation: Python blocks run, commands and links exist, and the pdb session is reproducible."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import shlex
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import typer

import tridal
from processes import python
from tridal.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
OP_PAGES = sorted(set((ROOT / "docs" / "benchmarks").glob("*.md")) - {ROOT / "docs" / "benchmarks" / "results.md"})
PAGES += OP_PAGES
BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)|!\[[^\]]*\]\((?P<image>[^)\s]+)\)")
TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)


def page_name(page: Path) -> str:
    """The path of a page relative to the repository."""
    return str(page.relative_to(ROOT))


def code_blocks(page: Path, *languages: str) -> Iterator[str]:
    """The text of the page's code blocks in these languages."""
    return (match["text"] for match in BLOCK.finditer(page.read_text()) if match["language"] in languages)


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return BLOCK.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub generates for the page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


ADD_AN_OP = ROOT / "docs" / "add-an-op.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"  # tests/project/test_tutorial.py runs its programs
ROW_OP_PACKAGE = ROOT / "tests" / "row_op_package"
TENSOR_OP_PACKAGE = ROOT / "tests" / "tensor_op_package"
RUN_ELSEWHERE = (ADD_AN_OP, TUTORIAL)
PAGES_WITH_PYTHON = [page for page in PAGES if any(code_blocks(page, "python")) and page not in RUN_ELSEWHERE]

READER_DEFINITIONS = """
import types, torch, tridal
x = torch.randn(4, 8)
scores, mask, d = torch.randn(2, 3, 8, 8), torch.ones(8, 8, dtype=torch.bool), 64
batch = {"input": torch.randn(4, 8, requires_grad=True), "target": torch.arange(4)}
def model(**batch): return types.SimpleNamespace(loss=torch.nn.functional.cross_entropy(**batch))
"""
"""Names that the pages use without a definition, because they stand for the reader's own code."""
READER_MODEL = """
import transformers
config = transformers.Qwen3Config(hidden_size=64, intermediate_size=96, num_hidden_layers=1, vocab_size=64)
model = transformers.Qwen3ForCausalLM(config)
transformers.AutoModelForCausalLM.from_pretrained = lambda name: model
"""
"""A small model for pages that download one."""


def with_models(page: Path) -> bool:
    """Returns whether the Python blocks of a page import transformers."""
    return any(re.search("^(import|from) transformers", block, re.M) for block in code_blocks(page, "python"))


@pytest.mark.slow("pages check backends and models")
@pytest.mark.parametrize("models", [False, True])
def test_python_blocks_run(models: bool, tmp_path: Path) -> None:
    """Runs all ```python blocks of the pages in order, in a process. Tracebacks show the line numbers of the page.

    Each page has its own names. Each block of README.md runs alone, because readers copy it alone.
    """
    program = READER_MODEL if models else ""
    for page in PAGES_WITH_PYTHON:
        text = page.read_text()
        program += f"exec({READER_DEFINITIONS!r}, names := {{}})\n" if with_models(page) is models else ""
        for match in BLOCK.finditer(text):
            if match["language"] == "python" and with_models(page) is models:
                block = "\n" * text.count("\n", 0, match.start("text")) + match["text"]
                program += "names = {}\n" if page.name == "README.md" else ""
                program += f"exec(compile({block!r}, {str(page)!r}, 'exec', dont_inherit=True), names)\n"
    python("-c", program, cwd=tmp_path, imported="transformers.models.llama.modeling_llama" if models else "torch")


def test_the_report_is_what_the_first_block_of_models_prints() -> None:
    pytest.importorskip("transformers")
    text = (ROOT / "docs" / "models.md").read_text()
    block, shown = (re.search(rf"^```{kind}\n(.*?)^```$", text, re.M | re.S) for kind in ("python", "text"))
    assert block is not None
    assert shown is not None
    printed = io.StringIO()
    with tridal.use(device="interpreter"), contextlib.redirect_stdout(printed):
        exec(block[1], {})
    assert printed.getvalue() == shown[1]


def test_link_targets_exist() -> None:
    for page, match in ((page, match) for page in PAGES for match in LINK.finditer(prose(page))):  # noqa: B020
        target = match["target"] or match["image"]
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.is_relative_to(ROOT), f"{target} is outside the repository"
        assert linked.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in anchors(linked), f"{target}: {page_name(linked)} has no such heading"


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every command on a page: `$` lines in console blocks, `tridal ...` and `make ...` in prose."""
    for text in code_blocks(page, "console"):
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                yield shlex.split(line[2:], comments=True)
    for text in re.findall(r"`((?:tridal|make) [^`]+)`", prose(page)):
        yield shlex.split(text.partition("#")[0])


def test_commands_exist() -> None:
    targets = set(TARGET.findall("\n".join(file.read_text() for file in [ROOT / "Makefile", *ROOT.glob("*.mk")])))
    for command in itertools.chain.from_iterable(map(commands, PAGES)):
        while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
            command = command[1:]
        if command[:1] == ["make"]:
            assert {argument for argument in command[1:] if "=" not in argument} <= targets, command
        if command[:1] == ["tridal"]:
            check_tridal_command(command[1:])


def check_tridal_command(arguments: list[str]) -> None:
    """Asserts that the command and its options exist. Ignores positional arguments, which can be placeholders."""
    group: Any = typer.main.get_command(app)
    options = [argument.partition("=")[0] for argument in arguments if argument.startswith("-")]
    parameters = [*group.params]
    if not arguments[0].startswith("-"):
        command = group.commands.get(arguments[0])
        assert command is not None, f"there is no command tridal {arguments[0]}"
        parameters += command.params
    known = {option for parameter in parameters for option in parameter.opts} | {"--help", "-h"}
    assert set(options) <= known, f"unknown option in: tridal {' '.join(arguments)}"


def test_add_a_backend_shows_the_tested_plugin() -> None:
    shown = list(code_blocks(ROOT / "docs" / "add-a-backend.md", "python", "toml"))
    for file in ("tridal_toy.py", "pyproject.toml"):
        assert (ROOT / "tests" / "plugin" / file).read_text() in shown, f"the page does not contain {file} verbatim"


def test_add_an_op_shows_the_tested_package() -> None:
    shown = list(code_blocks(ADD_AN_OP, "python", "toml"))
    for file in ("tridal_l2norm/kernels.py", "tridal_l2norm/__init__.py", "pyproject.toml", "test_l2_norm.py"):
        assert (ROW_OP_PACKAGE / file).read_text() in shown, f"the page does not contain {file} verbatim"
    for file in map("".join, product(("skip_norm", "logsumexp", "mean_energy", "target_gap"), ("_kernels.py", ".py"))):
        source = (TENSOR_OP_PACKAGE / "tridal_skipnorm" / file).read_text()
        assert source in shown, f"the page does not contain {file} verbatim"


def test_add_an_op_runs_its_python_blocks_of_calls() -> None:
    usage = [text for text in code_blocks(ADD_AN_OP, "python") if "from tridal_l2norm import" in text]
    assert len(usage) == 2  # of the function, and of another function of the op
    python("-c", "\n".join(usage), path=[ROW_OP_PACKAGE], TRIDAL_DEVICE="interpreter")


def test_the_pdb_session_gives_the_output_shown(tmp_path: Path) -> None:
    """Inserts breakpoint() after the line that the page names, runs the page's script, and types its pdb commands."""
    page = ROOT / "docs" / "debugging.md"
    script = next(code_blocks(page, "python"))
    session = next(text for text in code_blocks(page, "console") if "(Pdb)" in text).partition("\n")[2]
    location = re.search(
        r"into the function `(?P<function>\w+)` of\s\[src/(?P<file>[\w/.]+)\].*?after the line\s`(?P<line>[^`]+)`",
        prose(page),
        re.DOTALL,
    )
    assert location is not None, "the page names no function, file and line"
    shutil.copytree(Path(tridal.__file__).parent, tmp_path / "tridal")
    file = tmp_path / location["file"]
    lines = file.read_text().splitlines(keepends=True)
    (number,) = [number for number, line in enumerate(lines, 1) if line.strip() == location["line"]]
    indentation = lines[number - 1].removesuffix(lines[number - 1].lstrip())
    next_line = lines[number].strip()
    lines.insert(number, f"{indentation}breakpoint()\n")
    file.write_text("".join(lines))
    # Before 3.13, Python stops at the line after breakpoint().
    assert f"{file.name}({number + 2}){location['function']}()\n" in session
    (shown_line,) = re.findall(r"^-> (.*)$", session, re.MULTILINE)
    assert next_line.startswith(shown_line.removesuffix("..."))  # the page shortens it
    assert f"{file.name}:{number + 1}, " in page.read_text(), "the pdb command names another line"

    typed = "".join(f"{command}\n" for command in re.findall(r"^\(Pdb\) (.*)$", session, re.MULTILINE))
    output = python("-c", script, path=[tmp_path], input=typed).stdout
    assert normalize(output) == normalize(re.sub(r"^\(Pdb\) .*\n", "(Pdb) ", session, flags=re.MULTILINE))


def normalize(session: str) -> str:
    """Removes the current line of pdb, which depends on the Python release, and rounds numbers, which vary by CPU."""
    session = re.sub(r"^> .*\n-> .*\n", "", session, flags=re.MULTILINE)
    session = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.5f}", session)
    return re.sub(r"\s+", " ", session)
