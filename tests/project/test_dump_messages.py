"""The stored list of wrong calls whose messages two commits are compared by, and the record of a call."""

from __future__ import annotations

import ast
import builtins
import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import tridal
from tridal import library

SCRIPT = Path(__file__).parents[2] / "scripts" / "dump_messages.py"
DUMP: dict[str, Any] = runpy.run_path(str(SCRIPT))
LINES = [line for line in DUMP["CALLS"].read_text().splitlines() if line and not line.startswith("#")]
DEFINITIONS = [line for line in LINES if DUMP["_DEFINITION"].match(line)]


def test_the_list_has_250_calls_of_all_public_functions_and_modules() -> None:
    calls = [line for line in LINES if line not in DEFINITIONS]
    assert len(calls) == len(set(calls)) >= 250
    functions = {f"tridal.{name}" for name in tridal.__all__ if callable(getattr(tridal, name))} - {"tridal.backends"}
    modules = {f"nn.{name}" for name in tridal.nn.__all__}
    assert {name for name in functions | modules if f"{name}(" not in "\n".join(LINES)} == set()


def test_each_line_uses_names_that_are_defined() -> None:
    known = {*vars(builtins), *DUMP["names"]()}
    for line in LINES:
        nodes = list(ast.walk(ast.parse(line)))
        names = {(type(node.ctx), node.id) for node in nodes if isinstance(node, ast.Name)}
        known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        known |= {name for context, name in names if context is ast.Store}
        assert {name for _, name in names} <= known, line


def test_errors_of_all_ops_name_the_op_the_argument_and_the_expected_value() -> None:
    """Except those of Python and of torch. A linear layer's op may name the op of its rows."""
    call = re.compile(rf"tridal\.({'|'.join(op.name for op in library.OPS)})\(")
    others = re.compile(r"\w+\(\) (missing|got|takes) |.* not implemented for |one of the variables ")
    known, count = DUMP["names"](), 0
    for line in LINES:
        if line in DEFINITIONS:
            exec(line, known)
        elif (called := call.match(line)) is not None:
            with tridal.use(device="auto"):
                message = DUMP["outcome"](line, known)["message"]
            if message and not others.match(message):
                named = re.match(r"(\w+): [\w ]+ must .+, got ", message, re.DOTALL)
                assert named, f"{line}: {message}"
                assert called[1].endswith(named[1]), f"{line}: {message}"
                count += 1
    assert count > 200


def test_a_call_is_recorded_for_each_device_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls, file = tmp_path / "calls.txt", tmp_path / "messages.jsonl"
    calls.write_text("# softmax\nx = torch.ones(2)\ntridal.softmax(x, 1)\n\ntridal.softmax(x.requires_grad_())\n")
    main = DUMP["main"]
    monkeypatch.setitem(main.__globals__, "CALLS", calls)
    monkeypatch.setitem(main.__globals__, "logging", DUMP["types"].SimpleNamespace(disable=lambda: None))
    monkeypatch.setattr(sys, "argv", ["dump_messages.py", str(file)])
    with DUMP["warnings"].catch_warnings():
        main()
    error = {
        "type": "DimensionError",
        "message": "softmax: dim must be from -1 to 0 for input of shape (2,), got 1",
    }
    result = {"type": "no error, Tensor", "message": ""}
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"call": call, "device": device, **outcome}
        for call, outcome in (("tridal.softmax(x, 1)", error), ("tridal.softmax(x.requires_grad_())", result))
        for device in ("auto", "interpreter")
    ]


def test_numbers_of_lines_folders_and_addresses_are_left_out() -> None:
    def fail() -> None:
        raise ValueError("<f at 0x7f1200aa> of /usr/lib/a-b/tiles.py:12 and /tmp/c.py, line 34, but 0x10 and a/b stay")

    assert DUMP["outcome"]("fail()", {"fail": fail}) == {
        "type": "ValueError",
        "message": "<f at 0x...> of tiles.py:N and c.py, line N, but 0x10 and a/b stay",
    }
