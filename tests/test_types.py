"""Names of version 0.1 raise errors that give the new names."""

from __future__ import annotations

import dataclasses

import pytest

from backend_helpers import FakeBackend
from tridal.devices import plugins
from tridal.devices.types import KernelConfig, LaunchPlan, Problem, new_name


@pytest.mark.parametrize(
    ("old", "new"),
    [("tile", "config"), ("split", "programs_per_row"), ("edges", "peel"), ("rereads", "reload")],
)
def test_old_argument_raises_type_error_with_the_new_name(old, new):
    with pytest.raises(TypeError, match=f"KernelConfig has no argument '{old}'; '{old}' is called '{new}' since"):
        KernelConfig("whole_row", 1, 1, **{old: 1})


def test_old_attribute_raises_attribute_error_with_the_new_name():
    launch_plan = LaunchPlan(KernelConfig("whole_row", 1, 1), 1, "because")
    with pytest.raises(AttributeError, match="LaunchPlan has no attribute 'tile'; 'tile' is called 'config' since"):
        _ = launch_plan.tile
    with pytest.raises(AttributeError, match="'weighed' is called 'scale_mask' since"):
        _ = Problem(cols=1, inner=1).weighed
    with pytest.raises(AttributeError, match=r"Problem has no attribute 'nonsense'$"):
        _ = Problem(cols=1, inner=1).nonsense


@pytest.mark.parametrize(
    ("old", "new"), [("tile", "whole_row"), ("split", "cooperative"), ("looped", "column_loop"), ("wide", None)]
)
def test_old_schedule_raises_value_error_with_the_new_name(old, new):
    hint = f"; '{old}' is called '{new}' since version 0.2" if new else ""
    with pytest.raises(
        ValueError, match=rf"unknown schedule '{old}'{hint} \(known: whole_row, cooperative, column_loop"
    ):
        KernelConfig(old, 1, 1)


def test_old_class_names_raise_import_error_with_the_new_name():
    with pytest.raises(ImportError, match="'Tile' is called 'KernelConfig' since"):
        from tridal.types import Tile  # noqa: F401
    with pytest.raises(ImportError, match="'Algorithm' is called 'Schedule' since"):
        from tridal.types import Algorithm  # noqa: F401


@pytest.mark.parametrize(("old", "new"), [("edges", "peel"), ("rereads", "reload"), ("masked", "scale_mask")])
def test_old_feature_of_a_backend_is_reported_with_the_new_name(old, new):
    problem = plugins.find_problem(FakeBackend(schedules=frozenset({old})), "fake")
    assert problem is not None
    assert problem.startswith(f"schedules: unknown '{old}'{new_name(old, value=True)}")
    assert f"'{old}' is called '{new}' since version 0.2" in problem


def test_old_member_of_a_backend_is_reported_with_the_new_name():
    fields = {field.name for field in dataclasses.fields(FakeBackend)} - {"schedules"}
    old = type("Old", (), {name: getattr(FakeBackend(), name) for name in fields} | {"algorithms": frozenset()})
    problem = plugins.find_problem(old(), "fake")
    assert problem is not None
    assert problem.startswith("it lacks schedules")
    assert "; 'algorithms' is called 'schedules' since version 0.2" in problem
