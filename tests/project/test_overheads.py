"""The benchmark of costs outside of kernels: calls without launches, and the comparison of two commits."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tridal
from tridal.runtime import compiler

ROOT = Path(__file__).parents[2]


@pytest.fixture
def overheads(fresh_registry: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the script. Afterwards, Triton has the driver that it had before, and tridal its backends."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(compiler.import_triton().runtime.driver, "_active", None)
    return runpy.run_path(str(ROOT / "benchmarks" / "overheads.py"))


@pytest.mark.parametrize("plans", ["interpreter", "sm_90"])
def test_calls_without_launches_are_served_and_compute_nothing(overheads: dict[str, Any], plans: str) -> None:
    x = torch.full((8, 128), torch.nan, requires_grad=True)
    with overheads["without_launches"](plans), tridal.record_calls() as calls:
        for function in overheads["functions_of"](tridal, x.shape, x.device).values():
            overheads["with_backward"](function)(x)
    assert {(call.backend, call.reason) for call in calls} == {("interpreter", None)}  # also the name of the recorder
    assert sum(call.op.endswith("_backward") for call in calls) == 4
    with tridal.use(device="interpreter"):
        assert tridal.softmax(torch.zeros(1, 4)).tolist() == [[0.25] * 4]  # launched again


def test_a_loss_is_recorded_once_and_differentiated_in_each_call(overheads: dict[str, Any]) -> None:
    x = torch.ones(2, requires_grad=True)
    forwards: list[torch.Tensor] = []
    call = overheads["of_recorded_loss"](lambda x: (forwards.append(x), 3 * x)[1])
    for _ in range(3):
        call(x)
    assert x.grad is not None
    assert (len(forwards), x.grad.tolist()) == (1, [9.0, 9.0])


def test_numbers_of_another_commit_are_shown_beside_those_of_this_one(
    overheads: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main, file = overheads["main"], tmp_path / "before.json"
    rows: dict[str, Any] = {"a call": ("{:.1f} us, torch {:.1f} us", [2.04, 4.0])}
    monkeypatch.setitem(main.__globals__, "measured", lambda: rows)
    monkeypatch.setattr(sys, "argv", ["overheads.py", "--json", str(file)])
    main()
    assert json.loads(file.read_text())["rows"] == {"a call": ["{:.1f} us, torch {:.1f} us", [2.04, 4.0]]}
    rows |= {"a call": (rows["a call"][0], [1.0, 4.0]), "a new row": ("{:.0f} s", [3])}
    monkeypatch.setattr(sys, "argv", ["overheads.py", "--against", str(file)])
    main()
    call, new = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[-2:])
    assert call == "a call 1.0 us, torch 4.0 us before: 2.0 us, torch 4.0 us"
    assert new == "a new row 3 s"
