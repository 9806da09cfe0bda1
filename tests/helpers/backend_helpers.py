"""Helpers for tests of the registry: a fake backend, the source of toy plugins, and scripts in a new process."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import tridal
from processes import python
from tridal.devices import plugins, registry
from tridal.devices.types import DeviceProperties, KernelConfig, LaunchPlan, Option, Resources
from tridal.ops import planning

PLUGIN = Path(__file__).parents[1] / "plugin"
BUNDLED = {point.name for point in metadata.distribution("tridal").entry_points.select(group=plugins.GROUP)}


def is_positive(value: object) -> bool:
    return value > 0  # type: ignore[operator]  # raises TypeError for a string, which the tests need


@dataclasses.dataclass(eq=False)
class FakeBackend:
    """A backend that follows the protocol and needs no device."""

    name: str = "fake"
    device_type: str = "faketype"
    dtypes: frozenset[str] = frozenset({"float32"})
    schedules: frozenset[str] = frozenset({"whole_row"})
    features: frozenset[str] = frozenset()
    interpreted: bool = False
    options: Any = dataclasses.field(default_factory=lambda: {"size": Option(4, "a number above 0", is_positive)})
    install: str = "pip install fake"
    reason: str | None = None
    """The result of `unavailable()`."""
    count: int = 2
    """Number of devices."""
    unavailable_calls: int = 0
    protocol: int = 2

    def unavailable(self) -> str | None:
        self.unavailable_calls += 1
        return self.reason

    def device_count(self) -> int:
        return self.count

    def properties(self, index: int) -> DeviceProperties:
        return DeviceProperties(name=self.name, arch="fake1", cores=1)

    def architectures(self) -> dict[str, DeviceProperties]:
        return {"fake1": self.properties(0)}

    def plan(self, problem: Any, device: Any, probe: Any, options: Any) -> LaunchPlan:
        return LaunchPlan(KernelConfig("whole_row", 1, 1), 1, "because")

    def resources(self, asm: Any, shared_memory: int) -> Resources:
        return Resources(0, 0, 0)

    def stream(self, index: int) -> int:
        return 0

    def guard(self, index: int) -> Any:
        return nullcontext()


def toy_source(name: str, extra: str = "", device_type: str = "faketype") -> str:
    """Returns the source of the toy plugin with another name and device type, and with `extra` code at the end."""
    source = (PLUGIN / "tridal_toy.py").read_text()
    source = source.replace('name = "toy"', f'name = "{name}"').replace(
        'device_type = "cpu"', f'device_type = "{device_type}"'
    )
    return f"{source}\n{extra}\n"


def assert_others_work() -> None:
    """Asserts that the bundled backends load, plan and compute, and that torch computes CPU tensors."""
    assert {backend.name for backend in registry.loaded()} >= BUNDLED
    assert tridal.softmax(torch.zeros(4)).tolist() == [0.25] * 4
    assert {"interpreter", "ascend910b"} <= planning.architectures().keys()
    if registry.get("interpreter").unavailable() is None:
        with tridal.use(device="interpreter"):
            assert tridal.softmax(torch.zeros(4)).tolist() == [0.25] * 4


def faulty(fault: str) -> str:
    """Returns the source of a plugin with the backend "bad" for CPU tensors. `fault` is code that breaks it."""
    return toy_source("bad", fault, device_type="cpu")


def run_python(code: str, *folders: Path, **variables: str) -> str:
    """Runs code in a new process, with folders first on its path. Returns its standard output."""
    return python("-c", textwrap.dedent(code), path=folders, **variables).stdout


def install(folder: Path, *packages: Path) -> Path:
    """Builds the wheels of packages and installs them in a folder, which it returns."""
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder)]
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install", *options]
    subprocess.run([*pip, *map(str, packages)], check=True, timeout=240)
    return folder


def at_the_same_time(*functions: Callable[[], object]) -> list[Any]:
    """Calls functions in threads that start together. Returns their results in order."""
    barrier = threading.Barrier(len(functions))

    def run(function: Callable[[], object]) -> object:
        barrier.wait(timeout=10)
        return function()

    with ThreadPoolExecutor(len(functions)) as threads:
        return list(threads.map(run, functions))
