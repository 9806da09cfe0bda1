"""Tests `tridal plan`: plans for absent devices, its JSON and text output, and its error messages."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch

import tridal
from cli_helpers import run, run_json, words
from torch_versions import compiles, skip_unless_compiled
from tridal.errors import DeviceUnavailableError
from tridal.ops import planning
from tridal.runtime.compiler import can_compile

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("no_settings")

ARCHITECTURES = sorted(planning.architectures())
PLANNED = [name for name in ARCHITECTURES if compiles(planning.architectures()[name][0].name)]
COMPILED = [name for name in PLANNED if can_compile((p := planning.architectures()[name][1]).target) and p.registers]


def plan(*arguments: str, code: int = 0) -> str:
    return str(run("plan", *arguments, code=code).output)


def plan_json(*arguments: str) -> Any:
    return run_json("plan", *arguments)


@pytest.mark.parametrize("arch", PLANNED)
def test_plan_for_an_absent_architecture_equals_tridal_plan(arch: str) -> None:
    report = plan_json("4096", "12672", "--arch", arch)
    backend, properties = planning.architectures()[arch]
    assert report["backend"] == backend.name
    assert report["device"]["name"] == properties.name
    assert report["plan"] == json.loads(json.dumps(tridal.plan(4096, 12672, arch=arch).as_dict()))
    assert report["plan"]["launched_programs"] >= 1
    assert report["plan"]["reason"]


@pytest.mark.parametrize("arch", planning.example_architectures())
@pytest.mark.parametrize(
    ("rows", "cols", "op"), [(2**31, 1024, "softmax"), (2**23, 2**20, "swiglu"), (2**61 - 1, 1, "softmax")]
)
def test_matrix_with_more_tiles_than_a_launch_has_programs_gets_a_plan(
    arch: str, rows: int, cols: int, op: str
) -> None:
    skip_unless_compiled(planning.architectures()[arch][0].name)
    found = plan_json(str(rows), str(cols), "--op", op, "--arch", arch)["plan"]
    assert 1 <= found["launched_programs"] < 2**31
    assert found["config"]["persistent"]


def test_plan_of_blocks_of_rows_has_programs_for_each() -> None:
    report = plan_json("3000", "1152", "--op", "modulated_rms_norm_backward", "--blocks", "30", "--arch", "interpreter")
    assert report["blocks"] == report["plan"]["launched_programs"] == 30


def test_text_output_describes_the_plan() -> None:
    output = plan("1823", "781", "--arch", COMPILED[0], "--dtype", "bfloat16")
    _, properties = planning.architectures()[COMPILED[0]]
    planned = tridal.plan(1823, 781, dtype=torch.bfloat16, arch=COMPILED[0])
    programs = f"{planned.launched_programs:,}, one for each tile"
    for text in (properties.name, planned.config.schedule, programs, "registers per thread", "reason"):
        assert text in output


def test_output_has_the_bucket_and_the_programs_of_the_launch() -> None:
    planned = tridal.plan(100_000, 781, arch="ascend910b")
    assert (planned.programs, planned.launched_programs) == (32, 32)
    few = tridal.plan(5, 16, arch="ascend910b")
    assert (few.programs, few.launched_programs) == (32, 5)
    assert tridal.plan(2100, 16, arch="ascend910b").reason.startswith("planned for 2,304 rows, the bucket of 2,100; ")
    assert "planned" not in tridal.plan(4096, 16, arch="ascend910b").reason
    assert "programs 5, at most 32" in " ".join(plan("5", "16", "--arch", "ascend910b").split())
    assert "planned for 2,304 rows, the bucket of 2,100" in " ".join(plan("2100", "16", "--arch", "ascend910b").split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["0", "5", "--arch", "ARCH"], "rows must be a positive integer, got 0"),
        (["5", "0", "--arch", "ARCH"], "cols must be a positive integer, got 0"),
        (["--arch", "ARCH", "--", "-3", "5"], "rows must be a positive integer, got -3"),
        (["5", "5", "--arch", "ARCH", "--dtype", "flot32"], "did you mean 'float32'"),
        (["5", "5", "--arch", "ARCH", "--dim", "2"], "dim must be -1 or 1"),
        (["5", "5", "--arch", "ARCH", "--device", "cpu"], "not both"),
        (["many", "5"], "'many' is not an integer"),
        (["5", "many"], "valid integer"),
        ([f"{2**31}", f"{2**30}"], f"has {2**63} bytes, but a tensor has at most 2**63 - 1"),
        (["3", f"{2**64}"], "but a tensor has at most 2**63 - 1"),
        (["4096x128256"], "tridal plan 4096 128256"),
        (["4096x128256", "5"], "tridal plan 4096 128256"),
        (["5", "5", "--arch", COMPILED[0][:-1]], "did you mean"),
        (["5", "5", "--arch", "gaudi3"], "unknown architecture 'gaudi3' (known: "),
    ],
)  # fmt: skip
def test_bad_question_is_a_usage_error(arguments: list[str], message: str) -> None:
    given = [ARCHITECTURES[0] if argument == "ARCH" else argument for argument in arguments]
    assert message in words("plan", *given, code=2)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the settings choose an accelerator here")
def test_cpu_needs_an_arch_or_the_interpreter() -> None:
    output = plan("5", "5", code=1)
    assert "device 'auto' (default): torch computes cpu tensors without a plan" in output
    assert re.search(r"; use --arch \w+ or --device interpreter\n", output)
    with pytest.raises(DeviceUnavailableError, match=r"; use arch='\w+' or device='interpreter'$"):
        tridal.plan(5, 5)
    assert plan_json("5", "5", "--device", "interpreter")["backend"] == "interpreter"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_alias_of_an_architecture_is_accepted(arch: str) -> None:
    _, properties = planning.architectures()[arch]
    for name in (arch, arch.upper(), arch.replace("_", ""), *properties.aliases):
        assert planning.target(arch=name)[1] == properties
