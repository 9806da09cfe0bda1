"""Public types: the base class of backends, and the documentation of all fields."""

from __future__ import annotations

import dataclasses

import pytest

import field_tables
from tridal.devices import plugins, types
from tridal.devices.types import (
    Backend,
    BackendBase,
    DeviceProperties,
    KernelConfig,
    LaunchPlan,
    Probe,
    Problem,
)

# -- the base class


class Smallest(BackendBase):
    """A backend with as few members as possible."""

    protocol, name, device_type = 2, "smallest", "faketype"
    devices = {"small1": DeviceProperties("Small", "small1", cores=2)}  # noqa: RUF012

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: object) -> LaunchPlan:
        return LaunchPlan(KernelConfig("column_loop", 1, 64), device.cores, "always the same")


def test_backend_with_five_members_follows_the_protocol() -> None:
    backend = Smallest()
    assert isinstance(backend, Backend)
    assert plugins.find_fault(backend, "smallest") is None
    assert backend.unavailable() is None
    assert backend.device_count() == 1
    assert backend.properties(0) is backend.architectures()["small1"]
    assert backend.stream(0) == 0
    with backend.guard(0):
        pass


# -- documentation


@pytest.mark.parametrize("name", field_tables.TABLE.findall(field_tables.PAGE.read_text()))
def test_every_field_has_a_docstring(name: str) -> None:
    documented = [field for field, _, _, text in field_tables.fields(name) if text]
    assert documented == [field.name for field in dataclasses.fields(getattr(types, name))]


def test_page_has_the_tables_of_all_fields() -> None:
    page = field_tables.PAGE.read_text()
    assert len(field_tables.TABLE.findall(page)) == 6
    assert page == field_tables.updated(page), "run python tests/helpers/field_tables.py"
