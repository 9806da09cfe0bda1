"""`tridal plan`: plans for devices that are not here, its JSON, and what it says of wrong questions."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import tridal
from tridal.cli import app
from tridal.cli.plan import ALGORITHMS
from tridal.devices import registry
from tridal.devices.types import Algorithm
from tridal.ops import planning

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("no_settings")

ARCHITECTURES = sorted(planning.architectures())
COMPILED = sorted(name for name, (_, p) in planning.architectures().items() if p.target is not None and p.registers)


def plan(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


def as_data(*arguments: str) -> dict[str, Any]:
    return json.loads(plan(*arguments, "--json"))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_plans_for_what_is_not_here(arch: str) -> None:
    told = as_data("4096", "12672", "--arch", arch)
    backend, properties = planning.architectures()[arch]
    assert told["backend"] == backend.name
    assert told["device"]["name"] == properties.name
    assert told["plan"] == json.loads(json.dumps(tridal.plan(4096, 12672, arch=arch).as_dict()))
    assert told["plan"]["programs"] >= 1
    assert told["plan"]["reason"]


@pytest.mark.parametrize("arch", COMPILED)
def test_compiles_to_plan(arch: str) -> None:
    resources = as_data("512", "781", "--arch", arch)["plan"]["resources"]
    assert resources["registers"] > 0
    assert resources["spills"] >= 0


def test_json_has_the_question_and_is_stable() -> None:
    told = as_data("64", "100", "--arch", ARCHITECTURES[0], "--op", "log_softmax_backward", "--dim", "0")
    assert list(told) == ["rows", "cols", "dtype", "op", "dim", "backend", "device", "plan"]
    assert [told[key] for key in ("rows", "cols", "dtype", "op", "dim")] == [
        64,
        100,
        "float32",
        "log_softmax_backward",
        0,
    ]
    assert {"algorithm", "tile", "programs", "reason", "occupancy", "resources"} <= told["plan"].keys()


def test_for_people() -> None:
    text = plan("1823", "781", "--arch", COMPILED[0], "--dtype", "bfloat16")
    _, properties = planning.architectures()[COMPILED[0]]
    planned = tridal.plan(1823, 781, dtype=torch.bfloat16, arch=COMPILED[0])
    for words in (properties.name, planned.tile.algorithm, f"{planned.programs:,}", "registers a thread", "why"):
        assert words in text


def test_describes_every_algorithm() -> None:
    from typing import get_args

    assert set(ALGORITHMS) == set(get_args(Algorithm))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["0", "5", "--arch", "ARCH"], "rows must be a positive integer, got 0"),
        (["5", "0", "--arch", "ARCH"], "cols must be a positive integer, got 0"),
        (["--arch", "ARCH", "--", "-3", "5"], "rows must be a positive integer, got -3"),
        (["5", "5", "--arch", "ARCH", "--dtype", "flot32"], "did you mean 'float32'"),
        (["5", "5", "--arch", "ARCH", "--op", "sofmax"], "did you mean 'softmax'"),
        (["5", "5", "--arch", "ARCH", "--dim", "2"], "dim must be -1 or 1"),
        (["5", "5", "--arch", "ARCH", "--device", "cpu"], "not both"),
        (["5", "5", "--device", "interpretr"], "did you mean 'interpreter'"),
    ],
)
def test_says_what_is_wrong(arguments: list[str], words: str) -> None:
    text = plan(*[ARCHITECTURES[0] if word == "ARCH" else word for word in arguments], code=1)
    assert words in text
    assert "Traceback" not in text


def test_wrong_usage() -> None:
    assert "valid integer" in plan("many", "5", code=2)


def test_unknown_architecture_names_the_nearest() -> None:
    text = plan("5", "5", "--arch", COMPILED[0][:-1], code=1)
    assert "did you mean" in text
    assert COMPILED[0] in text


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the settings choose an accelerator here")
def test_a_cpu_has_no_plan_unasked() -> None:
    text = plan("5", "5", code=1)
    assert "torch computes without a plan" in text
    assert "arch=" in text
    assert as_data("5", "5", "--device", "interpreter")["backend"] == "interpreter"


def test_a_backend_that_cannot_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    arch = COMPILED[0]
    backend, _ = planning.architectures()[arch]

    def fail(*arguments: Any) -> Any:
        raise ZeroDivisionError("no cores at all")

    monkeypatch.setattr(type(backend), "plan", fail)
    text = plan("5", "5", "--arch", arch, code=1)
    assert f"backend '{backend.name}' could not plan for {arch}: ZeroDivisionError: no cores at all" in text


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: Any) -> Any:
        raise ModuleNotFoundError("No module named 'triton'", name="triton")

    backend, _ = planning.architectures()[COMPILED[0]]
    monkeypatch.setattr(type(backend), "plan", missing)
    assert "triton is not installed: pip install triton" in plan("5", "5", "--arch", COMPILED[0], code=1)


def test_architectures_are_those_of_the_registry() -> None:
    named = {name for e in registry.registered() if e.backend is not None for name in e.backend.architectures()}
    assert named == set(ARCHITECTURES)
