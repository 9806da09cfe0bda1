"""benchmarks/loss_heads.py prints a row for each head, and all heads have the exact gradient."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "loss_heads.py"


@pytest.mark.parametrize("kept", ["1", "0.5"])
def test_each_head_has_a_time_and_the_exact_gradient(
    kept: str, device: torch.device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--rows", "64", "--classes", "70", "--hidden", "8", "--ids", "3", "--kept", kept]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options])
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    runpy.run_path(str(SCRIPT), run_name="__main__")
    output = capsys.readouterr().out
    rows = re.findall(r"^\| (\w*)(?: \||\|) (.*?) \| ([\d.]+) \|", output, re.MULTILINE)
    for kind in ("log_probs", "metrics", "dpo", "grpo", "divergence"):
        heads = {"torch", "tridal", *["tridal, `save_logits=True`"] * (kind != "divergence")}
        assert heads <= {head for of, head, _ in rows if of == kind}, kind
    assert ("", "matmuls alone, of all rows") in {row[:2] for row in rows}
    assert all(float(time) > 0 for *_, time in rows)
    errors = [float(error) for error in re.findall(r"(\de-\d+) \|$", output, re.MULTILINE)]
    assert len(errors) >= 8
    assert max(errors) < (1e-5 if device.type == "cpu" else 2e-2)
