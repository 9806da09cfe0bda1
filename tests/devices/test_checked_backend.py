"""The boundary to a plugin: its data becomes that of the protocol, and members are called once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backend_helpers import FakeBackend
from tridal.devices import registry
from tridal.devices.checked_backend import CheckedBackend, forget_answers
from tridal.devices.types import DeviceProperties, KernelConfig, LaunchPlan, Problem, Resources
from tridal.errors import DeviceUnavailableError

CONFIG = KernelConfig("whole_row", 4, 8)
DEVICE = DeviceProperties("Toy", "toy1", 2)


def checked(plugin: FakeBackend) -> CheckedBackend:
    return CheckedBackend(plugin, "vendor 1.0")


class Config(KernelConfig):
    """A subclass, whose objects equal no KernelConfig."""


class Device(DeviceProperties):
    pass


class Plan(LaunchPlan):
    pass


def test_data_of_subclasses_becomes_that_of_the_protocol() -> None:
    probed: list[KernelConfig] = []

    def probe(config: KernelConfig) -> Resources:
        probed.append(config)
        return Resources(1, 0, 0)

    class Own(FakeBackend):
        def properties(self, index: int) -> DeviceProperties:
            return Device("Toy", "toy1", 2)

        def plan(self, problem: Any, device: Any, probe: Any, options: Any) -> LaunchPlan:
            config = Config("whole_row", 4, 8)
            return Plan(config, 1, "because", resources=probe(config))

    backend = checked(Own())
    plan = backend.plan(Problem(8, 4), DEVICE, probe, {})
    assert plan == LaunchPlan(CONFIG, 1, "because", resources=Resources(1, 0, 0))
    assert probed == [CONFIG]
    assert backend.properties(0) == DEVICE
    assert backend.architectures() == {"fake1": DEVICE}


def test_an_error_of_the_compiler_is_not_one_of_the_plugin() -> None:
    class Probing(FakeBackend):
        def plan(self, problem: Any, device: Any, probe: Any, options: Any) -> LaunchPlan:
            return LaunchPlan(CONFIG, 1, "because", resources=probe(CONFIG))

    def probe(config: KernelConfig) -> Resources:
        raise MemoryError("no LLVM")

    with pytest.raises(MemoryError, match=r"^no LLVM$"):
        checked(Probing()).plan(Problem(8, 4), DEVICE, probe, {})


def test_members_that_describe_the_machine_are_called_once_until_the_registry_changes() -> None:
    calls: list[str] = []

    class Counting(FakeBackend):
        def unavailable(self) -> str | None:
            calls.append("unavailable")
            return None

        def device_count(self) -> int:
            calls.append("device_count")
            return 2

        def properties(self, index: int) -> DeviceProperties:
            calls.append(f"properties {index}")
            return DEVICE

        def architectures(self) -> dict[str, DeviceProperties]:
            calls.append("architectures")
            return {"toy1": DEVICE}

    backend = checked(Counting())
    once = ["architectures", "device_count", "properties 0", "properties 1", "unavailable"]
    for _ in range(4):
        assert backend.unavailable() is None
        assert backend.device_count() == 2
        assert backend.architectures() == {"toy1": DEVICE}
        for index in range(2):
            backend.properties(index)
    assert sorted(calls) == once
    registry.invalidate()
    for index in range(2):
        backend.properties(index)
    assert sorted(calls) == sorted([*once, "properties 0", "properties 1"])


@pytest.mark.usefixtures("no_plugins")
def test_backend_without_a_device_is_unavailable() -> None:
    registry.register(FakeBackend(count=0))
    reason = "there is no device: device_count() returned 0"
    assert registry.get("fake").unavailable() == reason
    assert registry.serving("faketype") is None
    with pytest.raises(DeviceUnavailableError, match=r"'fake' is not available: there is no device"):
        registry.resolve("fake")


@pytest.fixture(autouse=True)
def _nothing_cached() -> Iterator[None]:
    forget_answers()
    yield
    forget_answers()
