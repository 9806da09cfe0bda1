"""Fixtures for all tests, and the option `--backend NAME`, which selects the backends under test."""

from __future__ import annotations

import collections
import gc
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run in parallel processes, whose threads would compete

# Inductor compiles a program for each vector instruction set that the processor has. This takes 3 seconds.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

import torch

import third_party_op
import tridal
import written_checks
from tridal.devices import backend_table, entry_points, plugins, registry, setting_table, settings
from tridal.devices.types import Backend
from tridal.errors import TridalError
from tridal.kernels.written import WrittenKernel
from tridal.ops import Op, table
from tridal.runtime import launch
from tridal.runtime.specialization import KernelCall

WrittenKernel.__init__ = written_checks.write_and_check  # type: ignore[method-assign]
collect_ignore = ["row_op_package"]  # tests of a package that is not installed, which test_third_party_wheels.py runs


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        action="append",
        metavar="NAME",
        help="run the conformance suite on this backend only; may be repeated (default: all that are available)",
    )

    parser.addoption(
        "--matrix",
        action="store_true",
        help="run every case of the conformance suite (default: few cases with all pairs of traits), and nightly tests",
    )
    parser.addoption(
        "--all-kernels",
        action="store_true",
        help="compile every planned kernel of the backends that are tested without a device (default: a few)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # see `pytest_collection_modifyitems`
    gc.set_threshold(10_000, 20, 1000)  # it searched the objects of imported modules for a tenth of the time
    config.addinivalue_line("markers", "slow(reason): the test takes more than 3 seconds, for this reason")
    config.addinivalue_line("markers", "nightly(instead): only --matrix runs it; `instead` says what finds its faults")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the nightly tests without --matrix. Puts the files that take longest first, for parallel processes."""
    if not config.getoption("--matrix"):
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if item not in set(nightly)]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    tests = collections.Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, -tests[item.path]))


def backends(config: pytest.Config) -> list[Backend]:
    """Returns the backends under test: those in `--backend`, or all available ones in the registry."""
    names = config.getoption("--backend")
    if names:
        try:
            return [registry.available(name) for name in names]
        except TridalError as error:
            raise pytest.UsageError(f"--backend: {error}") from error
    return [backend for backend in registry.loaded() if backend.unavailable() is None]


def pytest_report_header(config: pytest.Config) -> str:
    return "backends under test: " + (", ".join(backend.name for backend in backends(config)) or "none")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        selected = backends(metafunc.config)
        metafunc.parametrize("backend", selected, ids=[backend.name for backend in selected], scope="session")


@pytest.fixture(autouse=True, scope="module")
def _imported_objects_are_not_searched() -> None:
    """Hides the objects of imported modules from the garbage collector. It took a second to search them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def device(backend: Backend) -> Iterator[torch.device]:
    """A device under test. During the test, the backend serves its tensors."""
    torch.manual_seed(0)
    with tridal.use(device=backend.name):
        yield tridal.device()


@pytest.fixture
def module(backend: Backend, device: torch.device) -> Iterator[Any]:
    """The device module, for example torch.cuda."""
    if device.type == "cpu":
        pytest.skip("needs an accelerator")
    yield torch.get_device_module(device.type)
    gc.collect()
    torch.get_device_module(device.type).empty_cache()


@pytest.fixture
def no_calls() -> Iterator[None]:
    """Forgets all calls and plans before and after the test."""
    registry.invalidate()
    yield
    registry.invalidate()


@pytest.fixture
def planned(no_calls: None, monkeypatch: pytest.MonkeyPatch) -> list[KernelCall]:
    """The calls of kernels that the test plans, in order. No call is known before."""
    calls: list[KernelCall] = []
    prepare = launch.prepare
    monkeypatch.setattr(launch, "prepare", lambda call, *rest: calls.append(call) or prepare(call, *rest))
    return calls


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Removes all variables that select settings. The working folder and the user's configuration folder are empty."""
    for name in [name for name in os.environ if name.startswith(setting_table.PREFIX) or name == "TRITON_INTERPRET"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)
    settings.reload()
    yield tmp_path
    monkeypatch.undo()
    settings.reload()


@pytest.fixture
def fresh_registry(no_settings: Path) -> Iterator[None]:
    """Default settings, and a registry that discovers the plugins again. Afterwards, it has the backends under test."""
    before = registry.registered()
    registry.clear()
    yield
    backend_table.replace_entries(before)


@pytest.fixture
def no_plugins(fresh_registry: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry without any plugin, bundled ones included."""
    monkeypatch.setattr(entry_points.metadata, "distributions", lambda: iter(()))
    registry.clear()


@pytest.fixture
def install_plugin(
    fresh_registry: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., None]]:
    """Installs a plugin: a module with the given source, and a *.dist-info folder with its entry points."""
    monkeypatch.syspath_prepend(tmp_path)
    modules: list[str] = []

    def install(distribution: str, entry_points: dict[str, str], source: str = "", version: str = "1.0") -> None:
        module = distribution.replace("-", "_")
        info = tmp_path / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = "".join(f"{name} = {target}\n" for name, target in entry_points.items())
        (info / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{lines}")
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        modules.append(module)
        registry.clear()

    yield install
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture
def add_op(monkeypatch: pytest.MonkeyPatch) -> Callable[[Op], None]:
    """Returns a function that adds an op to the table of ops."""

    def add(op: Op) -> None:
        declared = {name: other for name, other in table._declared.items() if name != op.name}
        monkeypatch.setattr(table, "_declared", declared)  # it would take the place of the entry
        monkeypatch.setattr(table, "_entries", (*table.registered(), table.RegisteredOp(op.name, "a test", op)))

    return add


@pytest.fixture
def unit_norm_in_table(add_op: Callable[[Op], None]) -> None:
    """Adds UNIT_NORM to the table of ops."""
    add_op(third_party_op.UNIT_NORM)
