"""Tests the plan overrides of the conformance suite: the suite launches every schedule that a backend supports."""

from __future__ import annotations

from typing import Any

import pytest

from conformance_helpers import INTERPRETER
from tridal import testing
from tridal.devices.types import FEATURES, SCHEDULES, LaunchPlan
from tridal.runtime import launch
from tridal.testing.plan_overrides import PLAN_OVERRIDES, overrides


class Supporting:
    """A backend that supports these schedules and features."""

    def __init__(self, *names: str) -> None:
        self.schedules = frozenset(SCHEDULES) & {*names}
        self.features = frozenset(FEATURES) & {*names}


def test_backend_without_features_gets_the_overrides_of_its_schedules_only() -> None:
    backend: Any = Supporting("whole_row", "column_loop")
    assert overrides(backend) == ("whole_row", "column_loop", "single")


def test_backend_with_all_features_gets_every_override() -> None:
    backend: Any = Supporting(*SCHEDULES, *FEATURES)
    assert {"planned", *overrides(backend)} == set(PLAN_OVERRIDES)


@pytest.mark.usefixtures("no_calls")
def test_overridden_plans_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRETER.unavailable():
        pytest.skip("needs the interpreter")
    launched: list[LaunchPlan] = []
    prepare = launch.prepare

    def record(*arguments: Any) -> Any:
        prepared = prepare(*arguments)
        launched.append(prepared.plan)
        return prepared

    monkeypatch.setattr(launch, "prepare", record)
    names = ("planned", *overrides(INTERPRETER))
    for name in names:
        case = testing.Case("softmax", "forward", (30, 781), plan=name)
        assert testing.run_case(case, INTERPRETER).passed
    plans = dict(zip(names, launched, strict=True))
    assert plans["whole_row"].schedule == "whole_row"
    assert plans["column_loop"].schedule == "column_loop"
    assert plans["single"].programs == 1
    assert plans["column_loop"] != plans["planned"]
    blocks = 781 / plans["column_loop"].config.cols
    assert blocks > 3, "several blocks of columns"
    assert blocks % 1, "the last block is partial"
