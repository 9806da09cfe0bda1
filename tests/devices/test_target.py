"""Targets of Triton whose architecture is a mapping: they are checked, compiled for, and keys of caches."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

from triton.backends import backends
from triton.backends.compiler import GPUTarget

from backend_helpers import FakeBackend
from call_helpers import kernel_call
from cli_helpers import run_json, words
from tridal import testing
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
    assert json.loads(json.dumps(asdict(DEVICE)))["target"] == ["mapped", ARCHITECTURE, 32]


@pytest.mark.parametrize("architecture", [{1: 2}, [90], None, 9.0], ids=str)
def test_another_architecture_is_a_fault_of_the_plugin(architecture: Any) -> None:
    backend = CheckedBackend(Mapped(replace(DEVICE, target=("mapped", architecture, 32))), "vendor 1.0")
    with pytest.raises(PluginError, match=r"properties\(0\)\.target: expected \(backend, architecture, warp size\)"):
        backend.properties(0)


def test_kernels_are_compiled_for_the_architecture() -> None:
    backend = CheckedBackend(Mapped(), "vendor 1.0")
    for device in (DEVICE, replace(DEVICE, target=("mapped", {**ARCHITECTURE, "capability": 80}, 32))):
        made = launch.plan(CALL, backend, device, {})
        assert made.compilations == 1
        assert made.resources is not None
        assert made.resources.registers == 32


def test_a_target_without_a_compiler_is_an_error_with_the_backend() -> None:
    backend = CheckedBackend(Mapped(), "vendor 1.0")
    expected = r"^backend 'mapped' \(vendor 1.0\): Triton .* has no compiler for the target \('toy', 'toy1', 1\)"
    with pytest.raises(PlanError, match=expected):
        launch.plan(CALL, backend, replace(DEVICE, target=("toy", "toy1", 1)), {})


def test_the_runtime_of_the_backend_is_checked() -> None:
    class Streams(Mapped):
        def stream(self, index: int) -> int:
            return int(sys.modules["torch.mapped"].current_stream(index).mapped_queue)

        def guard(self, index: int) -> Any:
            return sys.modules["torch.mapped"].device(index)

    assert testing.check_runtime(Streams()) == ()


@pytest.mark.usefixtures("fresh_registry", "no_settings")
def test_commands_plan_for_the_architecture() -> None:
    registry.register(Mapped())
    assert "32 registers per thread" in words("plan", "64", "96", "--arch", "mapped1")
    assert run_json("plan", "64", "96", "--arch", "mapped1")["device"]["target"] == ["mapped", ARCHITECTURE, 32]
    # torch has no such device, so doctor ends with 1
    devices = [device for device in run_json("doctor", code=1)["devices"] if device["backend"] == "mapped"]
    assert [device["target"] for device in devices] == [["mapped", ARCHITECTURE, 32]] * 2
