"""`--backend NAME` chooses the backends under test; by default all that are available, taken from the registry."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tridal
from tridal.devices import registry, settings
from tridal.devices.types import Backend
from tridal.errors import TridalError


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        action="append",
        metavar="NAME",
        help="run the conformance suite on this backend only; may be repeated (default: all that are available)",
    )


def backends(config: pytest.Config) -> list[Backend]:
    """The backends under test."""
    names = config.getoption("--backend")
    try:
        if names:
            return [registry.available(name) for name in names]
    except TridalError as error:
        raise pytest.UsageError(f"--backend: {error}") from error
    found = [entry.backend for entry in registry.registered() if entry.backend is not None and entry.problem is None]
    return [backend for backend in found if registry.unavailable(backend) is None]


def pytest_report_header(config: pytest.Config) -> str:
    return "backends under test: " + (", ".join(backend.name for backend in backends(config)) or "none is available")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        chosen = backends(metafunc.config)
        metafunc.parametrize("backend", chosen, ids=[backend.name for backend in chosen], scope="session")


@pytest.fixture
def device(backend: Backend) -> Iterator[torch.device]:
    """A device under test, whose tensors the backend serves for as long as the test runs."""
    torch.manual_seed(0)
    with tridal.use(device=backend.name):
        yield tridal.device()


@pytest.fixture
def nothing_prepared() -> Iterator[None]:
    """No call is known from before the test, and none stays known."""
    registry._forget()
    yield
    registry._forget()


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty working folder and user folder, and no variable set."""
    for name in [name for name in os.environ if name.startswith(settings.PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)
    settings.reload()
    yield tmp_path
    monkeypatch.undo()
    settings.reload()
