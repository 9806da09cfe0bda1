"""The stored list of cases whose kernels two commits are compared by, and the recorder of their kernels."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tridal
from tridal.ops import table
from tridal.runtime import compiler

SCRIPTS = Path(__file__).parents[2] / "scripts"
CASES = [json.loads(line) for line in (SCRIPTS / "kernel_cases.jsonl").read_text().splitlines()]
NVIDIA = {"arch": "sm_90", "call": "softmax"}


def kind(case: dict[str, Any]) -> tuple[Any, ...]:
    """The function, the arguments of a case, and the value of `reduction`. On AMD GPUs, the function."""
    return case["arch"], case["call"], *((*sorted(case), case.get("reduction")) if case["arch"] == "sm_90" else ())


KINDS = [c for c in {kind(case): case for case in reversed(CASES)}.values() if c["arch"] in ("sm_90", "gfx942")]
"""One case of each kind, for an architecture of each vendor whose kernels the community's Triton compiles."""


@pytest.fixture
def recorder(fresh_registry: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module `record_kernels`. Afterwards, Triton has the driver that it had before, and tridal its backends."""
    triton = compiler.import_triton()
    monkeypatch.setattr(triton.runtime.driver, "_active", None)
    yield importlib.import_module("record_kernels")
    compiler.compile_kernel.cache_clear()


@pytest.fixture
def uncompiled(recorder: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recorder with a compiler that returns an empty kernel, whose binary is a number."""
    numbers = count()

    class Compiled:
        def __init__(self, source: Any, target: Any, options: Any) -> None:
            self.src, self.asm, self.packed_metadata = source, {"cubin": str(next(numbers)).encode()}, ()
            self.metadata = SimpleNamespace(shared=0, launch_cooperative_grid=True)

        def _init_handles(self) -> None:
            self.run, self.function = recorder.Launcher(self.src, self.metadata), self.asm["cubin"]

    def resources(self: Any, asm: Any, shared_memory: int) -> Any:
        self.latest = asm["cubin"]
        self.compiled[self.latest] = asm, shared_memory
        return tridal.types.Resources(32, 0, shared_memory)

    compiler.compile_kernel.cache_clear()
    monkeypatch.setattr(compiler.import_triton(), "compile", Compiled)
    monkeypatch.setattr(recorder.Recorder, "resources", resources)
    monkeypatch.setattr(recorder, "CALLS", 1)
    return recorder


def test_the_list_has_different_cases_with_1500_kernels_for_five_architectures() -> None:
    assert len({json.dumps(case, sort_keys=True) for case in CASES}) == len(CASES)
    assert {case["arch"] for case in CASES} == {"sm_80", "sm_90", "sm_100", "gfx942", "ascend910b"}
    forwards, backwards = len(CASES), sum("grad" in case and "linear_weight" not in case for case in CASES)
    assert forwards + backwards >= 1500  # each call has at least one kernel: see the next test
    assert (SCRIPTS / "kernel_cases.jsonl").stat().st_size < 400_000


@pytest.mark.slow("it plans a case of each kind")
def test_each_kind_of_case_launches_kernels_and_together_they_have_all_kernels_of_the_table(uncompiled: Any) -> None:
    found: set[str] = set()
    for case in KINDS:
        with tridal.record_calls() as calls:
            kernels = uncompiled.record(case)
        assert "torch" not in {call.backend for call in calls}, case
        assert len(kernels) >= 1 + ("grad" in case and "linear_weight" not in case), case
        found |= {call.op for call in calls}
    assert found >= set(table.kernels()) | {"cross_entropy_reduce", "cross_entropy_reduce_all"}


def test_a_kernel_has_its_plan_its_programs_and_its_code(recorder: Any) -> None:
    (kernel,) = recorder.record({**NVIDIA, "input": "float32[64,96](128,1)+4"})
    plan = tridal.plan(64, 96, arch="sm_90")
    assert kernel.plan[:4] == [plan.schedule, plan.config.rows, plan.config.cols, plan.config.num_warps]
    assert plan.programs in kernel.plan
    assert ".entry" in kernel.asm["ptx"]


def test_one_case_does_not_change_the_kernels_of_another(uncompiled: Any) -> None:
    case = {**NVIDIA, "input": "bfloat16[64,96]", "grad": ["input"]}
    before = [kernel.plan for kernel in uncompiled.record(case)]
    with pytest.raises(tridal.errors.TridalError):
        uncompiled.record({**case, "dim": 7})
    assert [kernel.plan for kernel in uncompiled.record(case)] == before
    assert len(before) == 2


@pytest.mark.parametrize(
    ("text", "strides", "offset"),
    [("float16[3,5]", (5, 1), 0), ("float16[3,5](8,1)+2", (8, 1), 2), ("int64[]", (), 0), ("bool[2,3]+1", (3, 1), 1)],
)
def test_text_describes_a_tensor(recorder: Any, text: str, strides: tuple[int, ...], offset: int) -> None:
    tensor = recorder._tensor(text)
    assert (tensor.stride(), tensor.storage_offset()) == (strides, offset)
    assert str(tensor.dtype).removeprefix("torch.") == text.partition("[")[0]
