"""Compiled backends in Triton's interpreter: the suite runs their plans without a device, and finds wrong ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("triton")

from conformance_helpers import INTERPRETER, registered
from torch_versions import compiles
from tridal import testing
from tridal.devices import registry
from tridal.devices.types import LaunchPlan
from tridal.errors import UnknownDeviceError
from tridal.ops import planning

pytestmark = pytest.mark.skipif(INTERPRETER.unavailable() is not None, reason="needs the interpreter")

COMPILED = [backend for backend in registry.loaded() if not backend.interpreted and compiles(backend.name)]


@pytest.mark.parametrize("compiled", COMPILED, ids=lambda backend: backend.name)
def test_the_plans_of_every_compiled_backend_pass(compiled: Any) -> None:
    with registered(testing.interpreted(compiled)) as backend:
        cases = [case for case in testing.quick_cases(backend, ["softmax", "rms_norm"]) if case.dtype != "float64"]
        assert {case.plan for case in cases} == {"planned", *testing.overrides(backend)}
        results = [testing.run_case(case, backend) for case in cases[::90] if math.prod(case.shape) < 10**5]
        results.append(testing.run_case(testing.Case("softmax", "forward", (2, 50_257)), backend))
    assert [f"{result.name}: {result.message}" for result in results if not result.passed] == []


def test_a_plan_has_the_limits_of_the_architecture_and_is_not_cooperative() -> None:
    cuda = registry.get("cuda")
    with registered(testing.interpreted(cuda, "h100")) as backend:
        cores = cuda.architectures()["sm_90"].cores
        narrow, wide = (planning.plan(4096, cols, device=backend.name) for cols in (640, 131_072))
        assert replace(planning.plan(4096, 640, arch="h100").config, exp2_bias=None) == narrow.config
        assert planning.plan(4096, 131_072, arch="h100").config.schedule == "cooperative"
        assert (backend.properties(0).cores, wide.config.schedule) == (cores, "column_loop")
        assert planning.plan(50_257, 512, dtype="bf16", dim=0, arch="h100").config.programs_per_row > 1
        assert planning.plan(50_257, 512, dtype="bf16", dim=0, device=backend.name).config.programs_per_row == 1
    with pytest.raises(UnknownDeviceError, match=r"backend 'cuda' has no architecture 'gfx942' \(it has: sm_"):
        testing.interpreted(cuda, "gfx942")


def test_a_wrong_plan_is_found() -> None:
    class Faulty(type(registry.get("cuda").plugin)):  # type: ignore[misc]
        def plan(self, *arguments: Any) -> LaunchPlan:
            made = super().plan(*arguments)
            return replace(made, config=replace(made.config, cols=32))

    with registered(testing.interpreted(Faulty())) as backend:
        results = [testing.run_case(testing.Case("softmax", "forward", (5, cols)), backend) for cols in (30, 300)]
    assert [result.passed for result in results] == [True, False]
    assert "made a wrong plan" in str(results[1].message)
