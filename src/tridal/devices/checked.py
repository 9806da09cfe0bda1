"""The boundary between tridal and a plugin: `CheckedBackend` calls a plugin's members and checks what they return.

A fault of a plugin is a PluginError with the name of the backend, its distribution and the member.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any, NoReturn

from tridal.devices.entry_points import describe_error
from tridal.devices.settings import describe_value
from tridal.devices.types import Backend, DeviceProperties, KernelConfig, LaunchPlan, Option, Probe, Problem, Resources
from tridal.errors import PlanError, PluginError, TridalError


class CheckedBackend:
    """A plugin's backend. The registry holds it instead of the plugin's object.

    Methods check the type of the result and turn exceptions into a PluginError. Other members are the plugin's own.
    These include `stream` and `guard`, which every call uses: `on_device` checks them once per device.
    """

    protocol: int
    name: str
    device_type: str
    dtypes: frozenset[str]
    schedules: frozenset[str]
    features: frozenset[str]
    interpreted: bool
    options: Mapping[str, Option]
    install: str
    stream: Callable[..., int]
    guard: Callable[..., AbstractContextManager[Any]]

    def __init__(self, plugin: Backend, origin: str) -> None:
        self.plugin = plugin
        """The plugin's object. `plugins.find_fault` has found no fault in it."""
        self.label = f"backend {plugin.name!r} ({origin})"
        """Name and distribution, for error messages."""
        self.seconds: dict[str, float] = {}
        """The longest time of a call of each member, without the time of the compiler."""
        self._checked_devices: set[int] = set()

    def __getattr__(self, member: str) -> Any:
        if member == "plugin":  # a copy is not initialised yet
            raise AttributeError(member)
        return getattr(self.plugin, member)

    def __repr__(self) -> str:
        return f"<{self.label}>"

    def unavailable(self) -> str | None:
        """Returns why the backend cannot run on this machine. A fault of the plugin is also a reason."""
        try:
            reason = self._call("unavailable")
            if reason is None or (isinstance(reason, str) and reason.strip()):
                return reason
            self._refuse("unavailable()", "a reason as text, or None", reason)
        except TridalError as error:
            return f"its plugin has a fault: {error}"

    def device_count(self) -> int:
        """Returns the number of devices that are present."""
        count = self._call("device_count")
        return count if type(count) is int and count >= 0 else self._refuse("device_count()", "a count", count)

    def properties(self, index: int) -> DeviceProperties:
        """Returns the properties of a device that is present."""
        return self._check_properties(f"properties({index})", self._call("properties", index))

    def architectures(self) -> Mapping[str, DeviceProperties]:
        """Returns the properties of devices by the names that `tridal plan --arch` takes."""
        found = self._call("architectures", convert=lambda found: {**found} if isinstance(found, Mapping) else found)
        if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
            self._refuse("architectures()", "a mapping from names to DeviceProperties", found)
        return {n: self._check_properties(f"architectures()[{n!r}]", properties) for n, properties in found.items()}

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """Returns the plugin's plan. `tridal.runtime.plan_check` checks its fields.

        An exception of `probe` is an error of the compiler, so it stays as it is. The time of probes is not counted.
        """
        failed: list[BaseException] = []
        compiling: list[float] = []

        def recorded(config: KernelConfig) -> Resources:
            if not isinstance(config, KernelConfig):
                self._refuse("plan() called probe(config)", "a KernelConfig", config)
            start = time.perf_counter()
            try:
                return probe(config)
            except BaseException as error:
                failed.append(error)
                raise
            finally:
                compiling.append(time.perf_counter() - start)

        try:
            planned = self._call("plan", problem, device, recorded, options, excluded=compiling)
        except TridalError as error:
            cause = error.__cause__
            if cause is not None and cause in failed:
                raise cause from cause.__cause__
            raise
        if not isinstance(planned, LaunchPlan):
            self._refuse("plan()", "a LaunchPlan", planned)
        if not isinstance(planned.config, KernelConfig):
            self._refuse("plan().config", "a KernelConfig", planned.config)
        return planned

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """Returns the resources of a compiled kernel."""
        found = self._call("resources", asm, shared_memory)
        if not isinstance(found, Resources):
            self._refuse("resources()", "Resources", found)
        for field in fields(Resources):
            value = getattr(found, field.name)
            if type(value) is not int or value < 0:
                self._refuse(f"resources().{field.name}", "an integer of at least 0", value)
        return found

    def on_device(self, index: int) -> DeviceProperties:
        """Returns the properties of a device that computes. Checks its `stream` and enters its `guard` once."""
        if index not in self._checked_devices:
            stream = self._call("stream", index)
            if type(stream) is not int:
                self._refuse(f"stream({index})", "an integer, 0 for a device without streams", stream)
            guard = self._call("guard", index)
            if not isinstance(guard, AbstractContextManager):
                self._refuse(f"guard({index})", "a context manager", guard)
            try:
                with guard:
                    pass
            except Exception as error:
                raise PluginError(f"{self.label}: entering guard({index}) raised {describe_error(error)}") from error
            self._checked_devices.add(index)
        properties = self.properties(index)
        if properties.target is None and not self.interpreted:
            self._refuse(f"properties({index}).target", "Triton's target, because kernels are compiled", None)
        return properties

    def _call(
        self, member: str, *arguments: Any, excluded: Sequence[float] = (), convert: Callable[[Any], Any] | None = None
    ) -> Any:
        """Calls a member of the plugin, converts its result, and records its time without the `excluded` seconds.

        Raises:
            PlanError: the member raised a PlanError, for example because no plan fits on the device.
            PluginError: the member raised another exception.
        """
        start = time.perf_counter()
        try:
            found = getattr(self.plugin, member)(*arguments)
            return found if convert is None else convert(found)
        except (PluginError, KeyboardInterrupt):
            raise
        except PlanError as error:
            raise PlanError(f"{self.label}: {member}(): {error}") from error
        except BaseException as error:  # includes SystemExit
            raise PluginError(f"{self.label}: {member}() raised {describe_error(error)}") from error
        finally:
            seconds = time.perf_counter() - start - sum(excluded)
            self.seconds[member] = max(self.seconds.get(member, 0.0), seconds)

    def _check_properties(self, what: str, found: Any) -> DeviceProperties:
        if not isinstance(found, DeviceProperties):
            self._refuse(what, "DeviceProperties", found)
        for field in fields(DeviceProperties):
            value, valid, expected = getattr(found, field.name), True, ""
            if field.type == "str":
                valid, expected = isinstance(value, str) and bool(value), "text"
            elif field.type in ("int", "int | None"):
                valid = (value is None and field.type != "int") or (type(value) is int and value > 0)
                expected = "a positive integer" + ("" if field.type == "int" else ", or None if it is not known")
            elif field.name == "target" and value is not None:
                kinds = [type(part) for part in value] if isinstance(value, tuple) else []
                valid, expected = kinds in ([str, int, int], [str, str, int]), "(backend, architecture, warp size)"
            if not valid:
                self._refuse(f"{what}.{field.name}", expected, value)
        return found

    def _refuse(self, what: str, expected: str, found: object) -> NoReturn:
        raise PluginError(f"{self.label}: {what}: expected {expected}, found {describe_value(found)}")


@functools.lru_cache(maxsize=256)
def checked(plugin: Backend, origin: str) -> CheckedBackend:
    """Returns the `CheckedBackend` of a plugin. If the plugins are discovered again, it stays the same object."""
    return CheckedBackend(plugin, origin)
