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
