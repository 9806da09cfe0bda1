"""The boundary to a plugin: the plugin gets copies, tridal uses copies, and members are called once."""

from __future__ import annotations

import enum
from collections import UserDict, namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import numpy
import pytest

from backend_helpers import FakeBackend
from tridal.devices import registry
from tridal.devices.checked_backend import CheckedBackend, forget_answers
from tridal.devices.plugin_data import Rule, exact_copy, or_none, wrong_fields
from tridal.devices.types import DeviceProperties, KernelConfig, LaunchPlan, Option, Problem, Resources
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


class Changing(KernelConfig):
    """Returns another value each time `cols` is read."""

    reads = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "cols":
            Changing.reads += 1
            return 8 * Changing.reads
        return super().__getattribute__(name)


def test_plan_and_probed_configuration_are_copied_and_each_field_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Changing, "reads", 0)
    probed: list[KernelConfig] = []

    def probe(config: KernelConfig) -> Resources:
        probed.append(config)
        return Resources(1, 0, 0)

    class Lazy(FakeBackend):
        def plan(self, problem: Any, device: Any, probe: Any, options: Any) -> LaunchPlan:
            config = Changing("whole_row", 4, 8)
            return LaunchPlan(config, 1, "because", resources=probe(config))

    plan = checked(Lazy()).plan(Problem(8, 4), DEVICE, probe, {})
    assert [type(config) for config in (*probed, plan.config)] == [KernelConfig, KernelConfig]
    assert [probed[0].cols, plan.config.cols, plan.config.cols] == [8, 16, 16]
    assert Changing.reads == 2


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


def test_properties_are_copied() -> None:
    class Growing(DeviceProperties):
        pass

    plugin: Any = FakeBackend()
    plugin.properties = lambda index: Growing("Toy", "toy1", 2)
    backend = checked(plugin)
    assert type(backend.properties(0)) is type(backend.architectures()["fake1"]) is DeviceProperties


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


# -- copies


class Name(str, enum.Enum):
    whole_row = "whole_row"

    def __str__(self) -> str:
        return "something else"


def test_aliases_are_a_tuple_of_texts() -> None:
    for aliases in (["t1"], (1,), "t1"):
        found = [name for name, _, _ in wrong_fields(replace(DEVICE, aliases=aliases))]  # type: ignore[arg-type]
        assert found == ["aliases"], aliases


PLAN = LaunchPlan(CONFIG, 2, "because", resources=Resources(1, 2, 3))


@pytest.mark.parametrize(
    "data",
    [CONFIG, PLAN, replace(DEVICE, aliases=("t1",)), Problem(8, 4), Option(1, "one", bool), PLAN.resources],
)
def test_copy_of_a_subclass_has_the_type_of_the_protocol_and_equal_fields(data: Any) -> None:
    class Lazy(type(data)):  # type: ignore[misc]
        pass

    copied = exact_copy(Lazy(**{field.name: getattr(data, field.name) for field in fields(data)}))
    assert type(copied) is type(data)
    assert copied == data
    assert copied is not data


def test_texts_and_containers_become_those_of_python() -> None:
    pair = namedtuple("pair", "first second")
    copied = exact_copy([pair(Name.whole_row, 1), UserDict({Name.whole_row: Name.whole_row}), {Name.whole_row}])
    assert type(copied) is list, "no member of a backend is a list, so a list stays as it is"
    copied = [exact_copy(part) for part in copied]
    assert copied == [("whole_row", 1), {"whole_row": "whole_row"}, {"whole_row"}]
    assert [type(part) for part in copied] == [tuple, dict, frozenset]
    assert {type(text) for part in copied for text in part} == {str, int}


@pytest.mark.parametrize("number", [True, 2.0, numpy.int64(3), Name, None])
def test_numbers_and_other_objects_stay_as_they_are(number: Any) -> None:
    assert exact_copy(number) is number


@pytest.fixture(autouse=True)
def _nothing_cached() -> Iterator[None]:
    forget_answers()
    yield
    forget_answers()


def test_rule_that_accepts_none_says_so() -> None:
    rule = Rule("a text", lambda value: type(value) is str)
    assert or_none(rule).expected == "a text or None"
    assert or_none(rule, "a name").expected == "a name"
    assert [or_none(rule).accepts(value) for value in ("a", None, 1)] == [True, True, False]
