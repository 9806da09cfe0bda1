"""The comparison of the kernels of two commits: the result for each kernel, and the exit code."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare_kernels.py"
KERNEL = {"case": "{}", "kernel": 0, "plan": ["whole_row", 1], "code": "a", "sass": "b", "operations": "c"}
ERROR = {"case": "{}", "kernel": 0, "error": "PlanError: no plan"}


def compare(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *kernels: dict[str, Any] | None, triton: str = "3.7.1"
) -> object:
    """Runs the script on two files with at most one kernel each. Returns its exit code or its message."""
    files = [folder / "before.jsonl", folder / "after.jsonl"]
    for file, kernel, version in zip(files, kernels, ("3.7.1", triton), strict=True):
        file.write_text("".join(json.dumps(line) + "\n" for line in ({"triton": version}, kernel) if line is not None))
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, files)])
    with pytest.raises(SystemExit) as exit:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return exit.value.code


@pytest.mark.parametrize(
    ("before", "after", "result"),
    [
        (KERNEL, KERNEL, "same code"),
        (KERNEL, KERNEL | {"code": "x"}, "same SASS"),
        (KERNEL, KERNEL | {"code": "x", "sass": "x"}, "same operations, other code"),
        (KERNEL, KERNEL | {"code": "x", "sass": "x", "operations": "x"}, "code differs"),
        (KERNEL, KERNEL | {"plan": ["whole_row", 2]}, "plan differs"),
        (KERNEL, ERROR, "another error"),
        (ERROR, ERROR, "same error"),
        (ERROR, ERROR | {"error": "TypeError: no"}, "another error"),
        (KERNEL, None, "in one file only"),
    ],
)
def test_the_exit_code_is_1_unless_code_sass_or_error_is_the_same(
    before: dict[str, Any], after: dict[str, Any] | None, result: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    same = result in ("same code", "same SASS", "same error")
    assert compare(monkeypatch, tmp_path, before, after) == (not same)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"    1 {result}"
    assert lines[:-1] == [] if same else lines[0] == f"{result}: kernel 0 of {{}}"


def test_files_of_different_versions_of_triton_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = compare(monkeypatch, tmp_path, KERNEL, KERNEL, triton="3.6.0")
    assert message == "the first file was made with Triton 3.7.1, the second one with 3.6.0: use the same"
