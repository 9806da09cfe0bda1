"""The boundary between tridal and a plugin: `CheckedBackend` calls a plugin's members and checks what they return.

A fault of a plugin is a PluginError with the name of the backend, its distribution and the member.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NoReturn, get_type_hints

from tridal.devices.entry_points import describe_error, one_line
from tridal.devices.plugin_data import Rule, instance_of, integer, rebuilt, wrong_fields
from tridal.devices.setting_table import describe_value
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
from tridal.errors import PlanError, PluginError, TridalError

ATTRIBUTES: Mapping[str, Any] = get_type_hints(Backend)
"""The type of each member of a backend that is not a method."""
_MAX_DEVICES = 128
"""torch numbers the devices of a type with 8 bits, from 0 to 127."""
_CONFIG = instance_of(KernelConfig, "a KernelConfig")
_PROPERTIES = instance_of(DeviceProperties, "DeviceProperties")
_RESULTS: Mapping[str, Rule] = {
    "unavailable": Rule(
        "a reason as text, or None", lambda found: found is None or (isinstance(found, str) and bool(found.strip()))
    ),
    "device_count": integer(0, _MAX_DEVICES, f"a count from 0 to {_MAX_DEVICES}"),
    "properties": _PROPERTIES,
    "architectures": Rule(
        "a mapping from names to DeviceProperties",
        lambda found: isinstance(found, dict) and all(isinstance(name, str) for name in found),
    ),
    "plan": instance_of(LaunchPlan, "a LaunchPlan"),
    "resources": instance_of(Resources, "Resources"),
    "stream": integer(0, (1 << 64) - 1, "an integer, 0 for a device without streams"),
    "guard": Rule("a context manager", lambda found: isinstance(found, AbstractContextManager)),
}
"""The rule of the result of each method."""


@functools.lru_cache(maxsize=4096)
def _answer(backend: CheckedBackend, member: str, *arguments: int) -> Any:
    """Calls a member once. An exception is not cached."""
    return backend._call(member, *arguments)


forget_answers = _answer.cache_clear
"""Clears the results of the members that are called once, so that the next use calls them again."""


class CheckedBackend(BackendBase):
    """A plugin's backend. The registry holds it instead of the plugin's object.

    Attributes are read once. Methods rebuild data of the protocol from its fields, check it, and turn exceptions into a
    PluginError. The results of `unavailable`, `device_count`, `properties` and `architectures` are cached until the
    registry changes. `stream` and `guard` are the plugin's own, because every call uses them.
    """

    def __init__(self, plugin: Backend, origin: str) -> None:
        self.plugin = plugin
        """The plugin's object. `plugins.find_fault` has found no fault in it."""
        for member in (*ATTRIBUTES, "stream", "guard"):
            setattr(self, member, getattr(plugin, member))
        self.origin = origin
        """Name and version of the distribution, or `IN_CODE`."""
        self.label = f"backend {self.name!r} ({origin})"
        """Name and distribution, for error messages."""

    def __repr__(self) -> str:
        return f"<{self.label}>"

    def unavailable(self) -> str | None:
        """Says why the backend cannot run on this machine. A fault of the plugin is also a reason."""
        try:
            reason = _answer(self, "unavailable")
            if reason is None:
                return "there is no device: device_count() returned 0" if self.device_count() == 0 else None
            return one_line(reason)
        except TridalError as error:
            return f"its plugin has a fault: {error}"

    def device_count(self) -> int:
        """The number of devices that are present."""
        return int(_answer(self, "device_count"))

    def properties(self, index: int) -> DeviceProperties:
        """The properties of the device with this index, which is present."""
        return _answer(self, "properties", index)  # type: ignore[no-any-return]

    def architectures(self) -> Mapping[str, DeviceProperties]:
        """The properties of known devices by the names that `tridal plan --arch` takes."""
        return _answer(self, "architectures")  # type: ignore[no-any-return]

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """Asks the plugin for a plan. `tridal.runtime.plan_check` checks its fields.

        An exception of `probe` is an error of the compiler, so it stays as it is.
        """
        failed: list[BaseException] = []

        def recorded(config: KernelConfig) -> Resources:
            try:
                config = rebuilt(config)
                self._check("plan() called probe(config)", config, _CONFIG)
                return probe(config)
            except BaseException as error:
                failed.append(error)
                raise

        planned = self._call("plan", problem, device, recorded, options, unchanged=failed)
        self._check("plan().config", planned.config, _CONFIG)
        return planned  # type: ignore[no-any-return]

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """The checked resources of a compiled kernel, see `Backend.resources`."""
        return self._call("resources", asm, shared_memory)  # type: ignore[no-any-return]

    def on_device(self, index: int) -> DeviceProperties:
        """Describes a device that computes. Checks what `stream` and `guard` return, once."""
        _answer(self, "stream", index)
        _answer(self, "guard", index)
        properties = self.properties(index)
        if properties.target is None and not self.interpreted:
            self._refuse(f"properties({index}).target", "Triton's target, because kernels are compiled", None)
        return properties

    @contextmanager
    def entered(self, index: int) -> Iterator[None]:
        """Enters the plugin's guard of a device. A guard that cannot be entered is a PluginError."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self.guard(index))
            except Exception as error:
                raise PluginError(f"{self.label}: entering guard({index}) raised {describe_error(error)}") from error
            yield

    def _call(self, member: str, *arguments: Any, unchanged: Sequence[BaseException] = ()) -> Any:
        """Calls a member of the plugin and checks its result.

        Raises:
            PlanError: the member raised a PlanError, for example because no plan fits on the device.
            PluginError: the member raised another exception that is not in `unchanged`, or its result is wrong.
        """
        what = f"{member}({arguments[0] if arguments and type(arguments[0]) is int else ''})"
        try:
            found = rebuilt(getattr(self.plugin, member)(*arguments))
        except BaseException as error:  # includes SystemExit
            if isinstance(error, KeyboardInterrupt) or any(error is other for other in unchanged):
                raise
            if isinstance(error, PlanError):
                raise PlanError(f"{self.label}: {what}: {error}") from error
            raise PluginError(f"{self.label}: {what} raised {describe_error(error)}") from error
        self._check(what, found, _RESULTS[member])
        return found

    def _check(self, what: str, found: Any, rule: Rule) -> None:
        """Raises PluginError if a value breaks its rule, or if a field of properties or resources breaks its own."""
        if not rule.accepts(found):
            self._refuse(what, rule.expected, found)
        if type(found) is dict:
            for name, properties in found.items():
                self._check(f"{what}[{name!r}]", properties, _PROPERTIES)
        if type(found) in (DeviceProperties, Resources):  # the runtime checks the fields of a plan
            for name, value, expected in wrong_fields(found):
                self._refuse(f"{what}.{name}", expected, value)
        if type(found) is DeviceProperties and found.target and found.warp_size not in (None, found.target[2]):
            expected = f"(backend, architecture, warp size) with the warp size {found.warp_size} of `warp_size`"
            self._refuse(f"{what}.target", expected, found.target)

    def _refuse(self, what: str, expected: str, found: object) -> NoReturn:
        raise PluginError(f"{self.label}: {what}: expected {expected}, found {describe_value(found)}")
