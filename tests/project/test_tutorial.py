"""Runs the programs of the tutorial, and compares their output with the page."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path

import pytest

from processes import python

ROOT = Path(__file__).parents[2]
TRITON = metadata.version("triton")
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
PROGRAM = re.compile(r"^```python\n(?P<text># (?P<name>\w+\.py)\n.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(
    r"^```console\n\$ (?P<variable>[\w=]*) ?python (?P<name>\w+\.py)\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL
)
PROGRAMS = {match["name"]: match["text"] for match in PROGRAM.finditer(PAGE)}
COMMANDS = {match["name"]: (match["variable"], match["output"]) for match in COMMAND.finditer(PAGE)}

# Programs of one process. Importing torch takes longer than most programs. my_backend.py imports share.py, and an op
# can be registered only once in a process.
PROCESSES = [
    ("naive.py", "occupancy.py", "explain.py", "share.py"),
    ("one_row.py", "programs.py", "backward.py"),
    ("my_backend.py",),
]

RUN = """
import contextlib, io, json, runpy, sys
outputs = {}
for name in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        runpy.run_path(name, run_name="__main__")
    outputs[name] = output.getvalue()
print(json.dumps(outputs))
"""


def test_the_tutorial_runs_all_of_its_programs() -> None:
    assert PAGE.count("```python") == len(PROGRAMS)
    assert set(COMMANDS) == {name for names in PROCESSES for name in names} == set(PROGRAMS) - {"share_kernels.py"}
    assert [int(step) for step in re.findall(r"^## Step (\d)", PAGE, re.MULTILINE)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("names", PROCESSES, ids=lambda names: names[0])
def test_programs_give_the_output_shown(names: tuple[str, ...], tmp_path: Path) -> None:
    """Compares the output of plans only with the version of Triton that the page names: registers depend on it."""
    if "explain.py" in names and tuple(map(int, TRITON.split(".")[:2])) < (3, 5):
        pytest.skip("Triton 3.4 and older need ld.lld to compile for AMD GPUs")
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
    (variable,) = {COMMANDS[name][0] for name in names}
    variables = dict([variable.split("=")] if variable else [])
    outputs = json.loads(python("-c", RUN, *names, path=[tmp_path], cwd=tmp_path, **variables).stdout)
    same_compiler = f"from Triton {TRITON}." in PAGE
    for name in names:
        if same_compiler or "plan(" not in PROGRAMS[name]:
            assert outputs[name] == COMMANDS[name][1]
