"""Public types: the base class of backends, and the documentation of all fields."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

import field_tables
from backend_helpers import PLUGIN
from tridal.devices import plugins, types
from tridal.devices.types import (
    Backend,
    BackendBase,
    DeviceProperties,
    KernelConfig,
    LaunchPlan,
    Probe,
    Problem,
    Resources,
)
from tridal.errors import PlanError

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


def test_base_class_raises_errors_for_missing_methods() -> None:
    with pytest.raises(NotImplementedError, match="BackendBase does not define plan"):
        BackendBase().plan(Problem(cols=1, inner=1), DeviceProperties("x", "x", 1), lambda _: Resources(0, 0, 0), {})
    with pytest.raises(NotImplementedError, match="Smallest does not define resources, which probes need"):
        Smallest().resources({}, 0)


def test_object_that_lacks_a_member_does_not_follow_the_protocol() -> None:
    assert not isinstance(object(), Backend)
    assert plugins.find_fault(BackendBase(), "mine") == "it lacks protocol, name, device_type"


@pytest.mark.parametrize("rows", [0, -1])
def test_tile_without_rows_raises_plan_error(rows: int) -> None:
    with pytest.raises(PlanError, match=f"rows = {rows}: a tile has at least one row"):
        Problem(cols=8, inner=8).tiles(rows)


# -- documentation


@pytest.mark.parametrize("name", field_tables.TABLE.findall(field_tables.PAGE.read_text()))
def test_every_field_has_a_docstring(name: str) -> None:
    documented = [field for field, _, _, text in field_tables.fields(name) if text]
    assert documented == [field.name for field in dataclasses.fields(getattr(types, name))]


def test_page_has_the_tables_of_all_fields() -> None:
    page = field_tables.PAGE.read_text()
    assert len(field_tables.TABLE.findall(page)) == 6
    assert page == field_tables.updated(page), "run python tests/helpers/field_tables.py"


def test_documented_sample_passes_strict_mypy(tmp_path: Path) -> None:
    """test_docs.py checks that the page shows the same file."""
    pytest.importorskip("mypy")
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = True\ncache_dir = /dev/null\n[mypy-tridal]\nfollow_imports = skip\n")
    source = Path(types.__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(config), str(PLUGIN / "tridal_toy.py")],
        env={**os.environ, "MYPYPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
