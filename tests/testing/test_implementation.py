"""Tests the implementation that the conformance suite runs: its functions, its backend, and overridden plans."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tridal
from conformance_helpers import INTERPRETER, registered
from tridal import testing
from tridal.devices import registry, settings
from tridal.devices.types import FEATURES, SCHEDULES, Backend
from tridal.errors import DeviceUnavailableError, PlanError
from tridal.ops import planning
from tridal.testing.changed_backend import with_members
from tridal.testing.implementation import public_function
from tridal.testing.plan_overrides import PLAN_OVERRIDES, overrides

DTYPES = "float32", "float64"


class Supporting:
    """A backend that supports these schedules and features."""

    def __init__(self, *names: str) -> None:
        self.schedules = frozenset(SCHEDULES) & {*names}
        self.features = frozenset(FEATURES) & {*names}


def test_functions_are_the_public_ones() -> None:
    assert public_function("softmax") is tridal.softmax
    with pytest.raises(PlanError, match="unknown op 'log_sofmax'; did you mean 'log_softmax'"):
        public_function("log_sofmax")


def test_backend_serves_its_tensors_inside_the_context_only(backend: Backend) -> None:
    before, entries = settings.current().device, registry.registered()
    with testing.implementation(backend, "column_loop") as implementation:
        assert implementation.device.type == backend.device_type
        assert implementation.interpreted == backend.interpreted
        assert settings.current().device == f"{backend.name}columnloop"
    assert settings.current().device == before
    assert registry.registered() == entries


def test_unavailable_backend_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(INTERPRETER), "unavailable", lambda self: "not installed: triton")
    with pytest.raises(DeviceUnavailableError, match="not installed: triton"), testing.implementation(INTERPRETER):
        pass


def test_torch_computes_no_case_of_a_backend() -> None:
    with registered(with_members(INTERPRETER, name="narrow", dtypes=frozenset({"float32"}))) as narrow:
        results = [testing.run_case(testing.Case("softmax", "forward", (3, 5), dtype=d), narrow) for d in DTYPES]
    assert [result.passed for result in results] == [True, False]
    assert "'narrow' does not support float64" in str(results[1].message)


def test_a_backend_gets_the_overrides_that_it_supports() -> None:
    few: Any = Supporting("whole_row", "column_loop")
    everything: Any = Supporting(*SCHEDULES, *FEATURES)
    assert overrides(few) == ("whole_row", "column_loop", "single")
    assert {"planned", *overrides(everything)} == set(PLAN_OVERRIDES)


def test_overridden_plans_are_launched() -> None:
    """A column loop has several blocks of columns, and the last one is partial."""
    if INTERPRETER.unavailable():
        pytest.skip("needs the interpreter")
    found = {}
    for name in ("planned", "whole_row", "column_loop", "single"):
        with testing.implementation(INTERPRETER, name), tridal.record_calls() as calls:
            tridal.softmax(torch.ones(30, 781))
            plan = planning.plan(30, 781, device=settings.current().device)
        assert [call.schedule for call in calls] == [plan.schedule]
        found[name] = plan
    assert (found["whole_row"].schedule, found["column_loop"].schedule) == ("whole_row", "column_loop")
    assert found["single"].programs == 1 < (found["planned"].programs or 2)
    blocks = 781 / found["column_loop"].config.cols
    assert blocks > 3
    assert blocks % 1
