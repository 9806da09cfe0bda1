"""Targets of Triton whose architecture is a mapping: they are checked, compiled for, and keys of caches."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

from triton.backends import backends
from triton.backends.compiler import GPUTarget

from backend_helpers import FakeBackend
from call_helpers import kernel_call
from cli_helpers import run_json, words
from tridal.devices import registry
from tridal.devices.checked_backend import CheckedBackend
from tridal.devices.types import DeviceProperties, KernelConfig, LaunchPlan, Resources
from tridal.errors import PlanError, PluginError
from tridal.runtime import launch

ARCHITECTURE = {"sizes": [16, 32], "capability": 90}
DEVICE = DeviceProperties("Mapped 1", "mapped1", cores=4, target=("mapped", ARCHITECTURE, 32))
CALL = kernel_call((64, 96))


class Mapped(FakeBackend):
    def __init__(self, device: DeviceProperties = DEVICE) -> None:
        super().__init__(name="mapped", device_type="mapped")
        self.device = device

    def properties(self, index: int) -> DeviceProperties:
        return self.device

    def architectures(self) -> dict[str, DeviceProperties]:
        return {"mapped1": self.device}

    def plan(self, problem: Any, device: Any, probe: Any, options: Any) -> LaunchPlan:
        config = KernelConfig("whole_row", 1, 128)
        return LaunchPlan(config, 4, "because", resources=probe(config))

    def resources(self, asm: Any, shared_memory: int) -> Resources:
        return Resources(32 if "ptx" in asm else 0, 0, shared_memory)


@pytest.fixture(autouse=True)
def _compiler_of_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds a compiler to Triton whose targets have a dict. It compiles for the capability in this dict."""
    cuda = backends["nvidia"].compiler

    class Compiler(cuda):  # type: ignore[misc, valid-type]
        @staticmethod
        def supports_target(target: GPUTarget) -> bool:
            return target.backend == "mapped"

        def __init__(self, target: Any) -> None:
            assert isinstance(target.arch, dict)
            super().__init__(GPUTarget("mapped", target.arch["capability"], 32))

    monkeypatch.setitem(backends, "mapped", SimpleNamespace(compiler=Compiler, driver=None))


def test_equal_architectures_are_equal_keys_in_any_order() -> None:
    other = replace(DEVICE, target=("mapped", dict(reversed(ARCHITECTURE.items())), 32))
    assert (other, hash(other), repr(other)) == (DEVICE, hash(DEVICE), repr(DEVICE))
    assert replace(DEVICE, target=("mapped", {**ARCHITECTURE, "capability": 80}, 32)) != DEVICE


@pytest.mark.parametrize("architecture", [{1: 2}, [90], None, 9.0], ids=str)
def test_another_architecture_is_a_fault_of_the_plugin(architecture: Any) -> None:
    backend = CheckedBackend(Mapped(replace(DEVICE, target=("mapped", architecture, 32))), "vendor 1.0")
    with pytest.raises(PluginError, match=r"properties\(0\)\.target: expected \(backend, architecture, warp size\)"):
        backend.properties(0)


@pytest.mark.usefixtures("fresh_registry", "no_settings")
def test_commands_compile_for_the_architecture_and_refuse_one_without_a_compiler() -> None:
    registry.register(Mapped())
    assert "32 registers per thread" in words("plan", "64", "96", "--arch", "mapped1")
    assert run_json("plan", "64", "96", "--arch", "mapped1")["device"]["target"] == ["mapped", ARCHITECTURE, 32]
    expected = r"Triton .* has no compiler for the target \('toy', 'toy1', 1\)"
    backend = CheckedBackend(Mapped(), "vendor 1.0")
    with pytest.raises(PlanError, match=expected):
        launch.plan(CALL, backend, replace(DEVICE, target=("toy", "toy1", 1)), {})
