"""Runs the examples, in this process, with the interpreter."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
BENCHMARKS = EXAMPLES.parent / "benchmarks"


def run(monkeypatch: pytest.MonkeyPatch, script: Path, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    monkeypatch.syspath_prepend(str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


def test_training_lowers_the_loss(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    run(monkeypatch, EXAMPLES / "train_a_model.py", "--steps", "3")
    output = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d+)", output)]
    assert "tridal.linear_cross_entropy for the loss in training" in " ".join(output.split())
    assert losses[-1] < losses[0] - 0.05, output


def test_comparison_of_a_model_gives_the_same_losses(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, EXAMPLES / "compare_a_model.py", "--steps", "2")
    output = capsys.readouterr().out
    losses = [[float(number) for number in line.split()[2:]] for line in output.splitlines() if line[:5] == "step "]
    assert len(losses) == 2
    assert losses[0][0] != losses[1][0]
    assert all(abs(plain - computed) < (1e-4 if device.type == "cpu" else 0.05) for plain, computed in losses)
    assert "7 modules replaced, 0 left" in output or "25 modules replaced, 0 left" in output


def test_sampling_is_computed_by_the_backend(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, EXAMPLES / "sample.py", "--rows", "2")
    computed, tokens, difference = capsys.readouterr().out.splitlines()
    assert computed.endswith(f"on {device}")
    assert "torch" not in computed
    assert all(0 <= int(token) < 128_256 for token in re.findall(r"\d+", tokens))
    assert float(difference.split()[-1]) < 1e-5


def test_benchmark_of_models_writes_its_results(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("matplotlib")
    providers = ["unchanged", "kernelize+fused_loss", "liger"]
    run(monkeypatch, BENCHMARKS / "models.py", "--tiny", "--output", str(tmp_path), "--providers", *providers)
    results = json.loads((tmp_path / "models.json").read_text())["results"]
    found = {(result["work"], result["provider"]): result["tokens_per_second"] for result in results}
    assert found["training", "kernelize+fused_loss"] > 0
    assert found.keys() >= {("training", "liger"), ("decoding", "liger"), ("decoding", "unchanged")}
    for picture in ("training.png", "decoding.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
