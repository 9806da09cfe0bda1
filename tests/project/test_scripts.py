"""The scripts for maintainers run, and their stored calls fit the functions. Nothing else in the tests uses them."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tridal
from tridal import library
from tridal.runtime import compiler

ROOT = Path(__file__).parents[2]
SCRIPTS, BENCHMARKS = ROOT / "scripts", ROOT / "benchmarks"
CASES = [json.loads(line) for line in (SCRIPTS / "kernel_cases.jsonl").read_text().splitlines()]


@pytest.fixture
def no_driver(fresh_registry: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards, Triton has the driver that it had before, and tridal its backends."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(compiler.import_triton().runtime.driver, "_active", None)


def test_functions_accept_the_arguments_of_the_stored_calls() -> None:
    options = importlib.import_module("record_kernels").OPTIONS
    for case in CASES:
        arguments = {name: value for name, value in case.items() if name not in options}
        inspect.signature(getattr(tridal, case["call"])).bind(**arguments)


@pytest.mark.usefixtures("no_driver")
def test_kernels_of_a_call_are_compiled_and_equal_to_themselves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = runpy.run_path(str(SCRIPTS / "dump_kernels.py"))["dump"]
    case = {"arch": "sm_90", "call": "softmax", "input": "bfloat16[64,96](128,1)+4", "grad": ["input"]}
    forward, backward = dump(json.dumps(case), False)
    assert set(forward) == {"case", "kernel", "plan", "code", "sass", "operations"}
    assert forward["sass"] != backward["sass"]
    (failed,) = dump(json.dumps({**case, "dim": 5}), False)
    assert failed["error"].startswith("DimensionError: ")
    file, changed = tmp_path / "kernels.jsonl", {**backward, "code": "", "sass": ""}
    for last, code in ((backward, 0), (changed, 1)):
        lines = [{"triton": "3"}, forward, last]
        file.write_text("\n".join(map(json.dumps, lines)))
        (tmp_path / "before.jsonl").write_text("\n".join(map(json.dumps, [{"triton": "3"}, forward, backward])))
        monkeypatch.setattr(sys, "argv", ["compare_kernels.py", str(tmp_path / "before.jsonl"), str(file)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(SCRIPTS / "compare_kernels.py"), run_name="__main__")
        assert int(end.value.code or 0) == code
    assert "1 same operations, other code" in capsys.readouterr().out


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


@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize("plans", ["interpreter", "sm_90"])
def test_overheads_are_measured_without_launches(plans: str) -> None:
    overheads = runpy.run_path(str(BENCHMARKS / "overheads.py"))
    x = torch.full((8, 128), torch.nan, requires_grad=True)
    with overheads["without_launches"](plans), tridal.record_calls() as calls:
        for function in overheads["functions_of"](tridal, x.shape, x.device).values():
            overheads["with_backward"](function)(x)
    assert {(call.backend, call.reason) for call in calls} == {("interpreter", None)}  # also the name of the recorder
    assert sum(call.op.endswith("_backward") for call in calls) == 4


def test_first_calls_of_each_op_are_measured(device: torch.device) -> None:
    first_calls: dict[str, Any] = runpy.run_path(str(BENCHMARKS / "first_calls.py"))
    first_calls["compute"].__globals__["ROWS"] = 2
    assert all(first_calls["measure"](op, 10, True)[0] > 0 for op in first_calls["OPS"])


def test_the_version_is_the_same_in_all_files() -> None:
    faults = runpy.run_path(str(SCRIPTS / "check_release.py"))["faults"](tridal.__version__)
    assert [fault for fault in faults if not fault.startswith("CHANGELOG.md")] == []
