"""The boundary to a plugin: the plugin gets copies, tridal uses copies, and members are called once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from backend_helpers import FakeBackend
from tridal.devices import registry
from tridal.devices.checked import CheckedBackend, forget_answers
from tridal.devices.types import DeviceProperties, KernelConfig, LaunchPlan, Problem, Resources
from tridal.errors import DeviceUnavailableError, PluginError

CONFIG = KernelConfig("whole_row", 4, 8)
DEVICE = DeviceProperties("Toy", "toy1", 2)


def checked(plugin: FakeBackend) -> CheckedBackend:
    return CheckedBackend(plugin, "vendor 1.0")


def test_plan_gets_copies_of_its_arguments() -> None:
    """A plugin that changes a problem would get a plan for another problem through the checks."""

    class Mutating(FakeBackend):
        def plan(self, problem: Any, device: Any, probe: Any, options: Any) -> LaunchPlan:
            object.__setattr__(problem, "cols", 1)
            object.__setattr__(problem, "layout", "inner")
            object.__setattr__(device, "registers", 10**9)
            options.clear()
            found = probe(CONFIG)
            object.__setattr__(found, "registers", 0)
            return LaunchPlan(CONFIG, 1, "because", resources=found)

    problem, device, options, cached = Problem(cols=8, inner=4), DEVICE, {"size": 4}, Resources(32, 0, 0)
    plan = checked(Mutating()).plan(problem, device, lambda config: cached, options)
    assert (problem, device, options, cached) == (Problem(cols=8, inner=4), DEVICE, {"size": 4}, Resources(32, 0, 0))
    assert plan.resources == Resources(0, 0, 0)


def test_plan_that_changes_between_reads_is_copied() -> None:
    class Changing(KernelConfig):
        reads = 0

        @property
        def cols(self) -> int:  # type: ignore[override]
            Changing.reads += 1
            return 8 if Changing.reads == 1 else 1

    class Lazy(FakeBackend):
        def plan(self, *_: Any) -> LaunchPlan:
            config = Changing.__new__(Changing)
            for name in ("schedule", "rows", "num_warps"):
                object.__setattr__(config, name, getattr(CONFIG, name))
            for name in KernelConfig.__dataclass_fields__.keys() - {"schedule", "rows", "num_warps", "cols"}:
                object.__setattr__(config, name, getattr(CONFIG, name))
            return LaunchPlan(config, 1, "because")

    plan = checked(Lazy()).plan(Problem(8, 4), DEVICE, lambda config: Resources(1, 0, 0), {})
    assert type(plan.config) is KernelConfig
    assert [plan.config.cols, plan.config.cols] == [8, 8]


def test_probe_gets_a_copy_of_the_configuration() -> None:
    class Wider(KernelConfig):
        pass

    class Probing(FakeBackend):
        def plan(self, problem: Any, device: Any, probe: Any, options: Any) -> LaunchPlan:
            return LaunchPlan(CONFIG, 1, "because", resources=probe(Wider("whole_row", 4, 8)))

    probed: list[KernelConfig] = []

    def probe(config: KernelConfig) -> Resources:
        probed.append(config)
        return Resources(1, 0, 0)

    checked(Probing()).plan(Problem(8, 4), DEVICE, probe, {})
    assert [type(config) for config in probed] == [KernelConfig]


def test_resources_get_a_copy_of_the_compilers_output() -> None:
    class Clearing(FakeBackend):
        def resources(self, asm: Any, shared_memory: int) -> Resources:
            asm.clear()
            return super().resources(asm, shared_memory)

    asm = {"cubin": b"kernel"}
    checked(Clearing()).resources(asm, 0)
    assert asm == {"cubin": b"kernel"}


def test_attributes_are_read_once_and_copied() -> None:
    class Flapping(FakeBackend):
        @property
        def interpreted(self) -> bool:  # type: ignore[override]
            self.__dict__["flip"] = not self.__dict__.get("flip", False)
            return self.__dict__["flip"]

        @interpreted.setter
        def interpreted(self, value: bool) -> None:
            pass

    plugin = Flapping()
    plugin.schedules = {"whole_row"}  # type: ignore[assignment]
    backend = checked(plugin)
    assert [backend.interpreted, backend.interpreted, backend.interpreted] == [True, True, True]
    plugin.schedules.add("cooperative")  # type: ignore[attr-defined]
    plugin.options.clear()
    assert backend.schedules == {"whole_row"}
    assert list(backend.options) == ["size"]


def test_properties_that_change_between_reads_are_copied() -> None:
    class Growing(DeviceProperties):
        pass

    class Lazy(FakeBackend):
        def properties(self, index: int) -> DeviceProperties:
            return Growing("Toy", "toy1", 2)

        def architectures(self) -> dict[str, DeviceProperties]:
            return {"toy1": self.properties(0)}

    backend = checked(Lazy())
    assert type(backend.properties(0)) is type(backend.architectures()["toy1"]) is DeviceProperties


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
    assert set(backend.seconds) == {"architectures", "device_count", "properties", "unavailable"}
    registry.invalidate()
    for index in range(2):
        backend.properties(index)
    assert sorted(calls) == sorted([*once, "properties 0", "properties 1"])


def test_exception_of_a_member_is_not_cached() -> None:
    class Late(FakeBackend):
        ready = False

        def properties(self, index: int) -> DeviceProperties:
            if not self.ready:
                raise RuntimeError("the driver starts")
            return DEVICE

    plugin = Late()
    with pytest.raises(PluginError, match=r"properties\(0\) raised RuntimeError: the driver starts"):
        checked(plugin).properties(0)
    plugin.ready = True
    assert checked(plugin).properties(0) == DEVICE


def test_reason_of_several_lines_is_shortened_to_one() -> None:
    reason = checked(FakeBackend(reason="no\n driver" + "x" * 9999)).unavailable()
    assert reason is not None
    assert reason.startswith("no driverxxx")
    assert " ... xxx" in reason
    assert len(reason) <= 500


@pytest.mark.usefixtures("no_plugins")
def test_backend_without_a_device_is_unavailable() -> None:
    registry.register(FakeBackend(count=0))
    reason = "there is no device: device_count() returned 0"
    assert registry.get("fake").unavailable() == reason
    assert registry.serving("faketype") is None
    with pytest.raises(DeviceUnavailableError, match=r"'fake' is not available here: there is no device"):
        registry.resolve("fake")


def test_own_reason_of_a_plugin_precedes_the_number_of_devices() -> None:
    assert checked(FakeBackend(count=0, reason="no driver")).unavailable() == "no driver"


def test_guard_is_entered_twice_and_checked_once_per_device() -> None:
    entered: list[int] = []

    class Guarded(FakeBackend):
        @contextmanager
        def guard(self, index: int) -> Iterator[None]:
            entered.append(index)
            yield

    backend = checked(Guarded(interpreted=True))
    for index in (0, 0, 1, 1):
        backend.on_device(index)
    assert entered == [0, 0, 1, 1]


def test_exception_inside_a_guard_stays_as_it_is() -> None:
    error = ValueError("a launch failed")
    with pytest.raises(ValueError, match="a launch failed") as raised, checked(FakeBackend()).entered(0):
        raise error
    assert raised.value is error


@pytest.mark.parametrize("leaving", [False, True])
def test_fault_of_a_guard_names_the_backend_and_what_it_did(leaving: bool) -> None:
    class Broken(nullcontext[None]):
        def __enter__(self) -> None:
            if not leaving:
                raise OSError("no such device")

        def __exit__(self, *_: Any) -> None:
            raise OSError("no such device")

    class Guarded(FakeBackend):
        def guard(self, index: int) -> Any:
            return Broken()

    doing = "leaving" if leaving else "entering"
    message = rf"^backend 'fake' \(vendor 1.0\): {doing} guard\(1\) raised OSError: no such device$"
    with pytest.raises(PluginError, match=message), checked(Guarded()).entered(1):
        pass


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (
            {"target": ("cuda", 90, 64), "warp_size": 32},
            "target: expected (backend, architecture, warp size) with the ",
        ),
        (
            {"target": ("cuda", 90.0, 32)},
            "target: expected (backend, architecture, warp size) or None, found ('cuda', ",
        ),
        ({"aliases": 5}, "aliases: expected a tuple of texts, found 5"),
        ({"aliases": (5,)}, "aliases: expected a tuple of texts, found (5,)"),
    ],
)
def test_target_or_alias_of_a_wrong_form_is_an_error(properties: dict[str, Any], expected: str) -> None:
    plugin: Any = FakeBackend()
    plugin.properties = lambda index: DeviceProperties("Toy", "toy1", 2, **properties)
    with pytest.raises(PluginError) as raised:
        checked(plugin).properties(0)
    assert str(raised.value).startswith(f"backend 'fake' (vendor 1.0): properties(0).{expected}")


@pytest.fixture(autouse=True)
def _nothing_cached() -> Iterator[None]:
    forget_answers()
    yield
    forget_answers()
