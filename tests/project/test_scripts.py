"""The scripts for maintainers run, and their stored calls fit the functions. Nothing else in the tests uses them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import tridal
from tridal import library

ROOT = Path(__file__).parents[2]
SCRIPTS, BENCHMARKS = ROOT / "scripts", ROOT / "benchmarks"


def test_errors_of_wrong_calls_name_the_op_the_argument_and_the_expected_value() -> None:
    """Except those of Python and of torch. A linear layer's op may name the op of its rows."""
    dump = runpy.run_path(str(SCRIPTS / "dump_messages.py"))
    call = re.compile(rf"tridal\.({'|'.join(op.name for op in library.OPS)})\(")
    others = re.compile(r"\w+\(\) (missing|got|takes) |.* not implemented for |one of the variables ")
    known, count = dump["names"](), 0
    for line in dump["CALLS"].read_text().splitlines():
        if dump["_DEFINITION"].match(line):
            exec(line, known)
        elif (called := call.match(line)) is not None:
            with tridal.use(device="auto"):
                message = dump["outcome"](line, known)["message"]
            if message and not others.match(message):
                named = re.match(r"(\w+): [\w ]+ must .+, got ", message, re.DOTALL)
                assert named, f"{line}: {message}"
                assert called[1].endswith(named[1]), f"{line}: {message}"
                count += 1
    assert count > 200


def test_the_version_is_the_same_in_all_files() -> None:
    faults = runpy.run_path(str(SCRIPTS / "check_release.py"))["faults"](tridal.__version__)
    assert [fault for fault in faults if not fault.startswith("CHANGELOG.md")] == []
