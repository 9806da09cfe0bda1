"""Runs the examples with the interpreter, in this process unless they register an op."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from extras import of_trainers
from processes import python

EXAMPLES = Path(__file__).parents[2] / "examples"


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


def test_preferences_have_the_losses_of_torch(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, EXAMPLES / "dpo.py", "--steps", "4")
    losses = [[float(n) for n in re.findall(r"\d\.\d{5}", line)] for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 4
    assert losses[0] == pytest.approx([0.69315] * 2, abs=1e-4), "log(2), because both models are the same"
    assert all(ours == pytest.approx(theirs, abs=1e-3) for ours, theirs in losses)
    assert losses[3][0] < losses[0][0] - 0.2


def test_rewards_have_the_losses_gradients_and_entropies_of_torch(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, EXAMPLES / "grpo.py", "--steps", "2")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    of = {name: [list(map(float, line[1:])) for line in lines if line[0] == name] for name in ("tridal", "torch")}
    assert len(of["tridal"]) == len(of["torch"]) == 2
    for ours, theirs in zip(of["tridal"], of["torch"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=2e-5)
        assert abs(theirs[0]) > 1e-3
        assert theirs[1] > 1e-2


@pytest.mark.parametrize("options", [[], ["--trl"]], ids=["transformers", "trl"])
def test_trainers_with_a_loss_head_have_the_losses_of_those_without(
    options: list[str], device: torch.device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("transformers", "accelerate", *["trl"] * bool(options)):
        of_trainers(package)
    run(monkeypatch, EXAMPLES / "train_with_a_trainer.py", "--steps", "3", *options)
    output = capsys.readouterr().out
    steps = [[float(number) for number in re.findall(r"\d\.\d+", line)] for line in re.findall(r"step  \d: .*", output)]
    assert len(steps) == 3
    for ours, theirs, entropy, accuracy in steps:
        assert ours == pytest.approx(theirs, rel=1e-3)
        assert 5 < entropy < 5.6
        assert 0 <= accuracy < 1
    assert steps[-1][0] < steps[0][0] - 0.2
    calls = re.findall(r"(\w+) the head: (\d+) calls", output)
    assert dict(calls)["without"] == "0"
    assert int(dict(calls)["with"]) >= 3 * 2, "a forward and a backward in each step"


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


def test_a_declaration_becomes_two_kernels_of_which_the_interpreter_launches_one() -> None:
    script = EXAMPLES / "from_declaration_to_launch.py"
    assert len(script.read_text().splitlines()) <= 150
    output = python(str(script)).stdout
    (layout,) = re.findall(r"layout: (\d+) block of (\d+) rows of (\d+) elements", output)
    assert layout == ("1", "1000", "781")
    plans = re.findall(r"5[ab]\. The plan for (.*?): (\w+), tiles of (\d+) x (\d+)", output)
    kernels = dict(re.findall(r"6[ab]\. The kernel for (.*?):\n\n(.*?)(?=\n\n\d)", output, re.DOTALL))
    assert [device for device, *_ in plans] == [*kernels] == ["NVIDIA H100", "CPU, by Triton's interpreter"]
    for device, schedule, _, cols in plans:
        assert f"def {schedule}(" in kernels[device]
        assert f"tl.arange(0, {cols})" in kernels[device]
        assert "op_math.scaled(x, weight, rms, AXIS=1)" in kernels[device]
    assert len({*kernels.values()}) == 2
    assert "unit_rms of [1000, 781] float32 on cpu by interpreter: whole_row" in output
    differences = re.findall(r"differs from torch by at most ([\d.e+-]+)", output)
    assert len(differences) == 3
    assert all(float(difference) < 1e-5 for difference in differences)
