"""The boundary between tridal and a plugin: `CheckedBackend` calls a plugin's members and checks what they return.

A fault of a plugin is a PluginError with the name of the backend, its distribution and the member.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import fields
from typing import Any, NoReturn, TypeVar, get_type_hints
from weakref import WeakSet

from tridal.devices.entry_points import describe_error, is_bundled, one_line
from tridal.devices.exact_copy import exact_copy
from tridal.devices.properties_check import wrong_fields
from tridal.devices.settings import describe_value
from tridal.devices.types import Backend, DeviceProperties, KernelConfig, LaunchPlan, Option, Probe, Problem, Resources
from tridal.errors import PlanError, PluginError, TridalError

ATTRIBUTES: Mapping[str, Any] = get_type_hints(Backend)
"""The type of each member of a backend that is not a method."""
MAX_DEVICES = 128
"""torch numbers the devices of a type with 8 bits, from 0 to 127."""

_Method = TypeVar("_Method", bound=Callable[..., Any])
_caches: list[Any] = []
_bundled: WeakSet[CheckedBackend] = WeakSet()


def forget_answers() -> None:
    """Clears the results of the members that are called once, so that the next use calls them again."""
    for cache in _caches:
        cache.cache_clear()


def _once(method: _Method) -> _Method:
    """Caches the results of a method. An exception is not cached."""
    cached: Any = functools.lru_cache(maxsize=4096)(method)
    _caches.append(cached)
    return cached  # type: ignore[no-any-return]


class _Inside(Exception):
    """Raised inside a guard to check that the guard does not suppress it."""


class CheckedBackend:
    """A plugin's backend. The registry holds it instead of the plugin's object.

    Attributes are read once. Methods check copies of the results and turn exceptions into a PluginError. The results of
    `unavailable`, `device_count`, `properties` and `architectures` are cached until the registry changes. Other members
    are the plugin's own, such as `stream` and `guard`, which every call uses: `on_device` checks them once per device.
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
        for member in ATTRIBUTES:
            setattr(self, member, exact_copy(getattr(plugin, member)))
        self.label = f"backend {self.name!r} ({origin})"
        """Name and distribution, for error messages."""
        self.bundled = is_bundled(origin)
        """Whether tridal's own distribution provides the backend."""
        if self.bundled:
            _bundled.add(self)
        self.seconds: dict[str, float] = {}
        """The longest time of a call of each member, without the time of the compiler."""
        self._checked_devices: set[int] = set()

    def __getattr__(self, member: str) -> Any:
        if member == "plugin":  # a copy is not initialised yet
            raise AttributeError(member)
        return getattr(self.plugin, member)

    def __repr__(self) -> str:
        return f"<{self.label}>"

    @_once
    def unavailable(self) -> str | None:
        """Returns why the backend cannot run on this machine. A fault of the plugin is also a reason."""
        try:
            reason = self._call("unavailable")
            if reason is None:
                return "there is no device: device_count() returned 0" if self.device_count() == 0 else None
            if not isinstance(reason, str) or not reason.strip():
                self._refuse("unavailable()", "a reason as text, or None", reason)
            return one_line(reason)
        except TridalError as error:
            return f"its plugin has a fault: {error}"

    @_once
    def device_count(self) -> int:
        """Returns the number of devices that are present."""
        count = self._call("device_count")
        if type(count) is not int or not 0 <= count <= MAX_DEVICES:
            self._refuse("device_count()", f"a count from 0 to {MAX_DEVICES}", count)
        return count

    @_once
    def properties(self, index: int) -> DeviceProperties:
        """Returns the properties of a device that is present."""
        return self._check_properties(f"properties({index})", self._call("properties", index))

    @_once
    def architectures(self) -> Mapping[str, DeviceProperties]:
        """Returns the properties of devices by the names that `tridal plan --arch` takes."""
        found = self._call("architectures")
        if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
            self._refuse("architectures()", "a mapping from names to DeviceProperties", found)
        return {n: self._check_properties(f"architectures()[{n!r}]", properties) for n, properties in found.items()}

    @property
    def tested_targets(self) -> frozenset[tuple[str, int | str, int] | None]:
        """Triton's targets for which tridal's tests compile kernels: those of all bundled backends."""
        return frozenset(known.target for backend in tuple(_bundled) for known in backend.architectures().values())

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """Returns a copy of the plugin's plan. `tridal.runtime.plan_check` checks its fields.

        The plugin gets copies of the arguments, and of the results of `probe`, which are cached. An exception of
        `probe` is an error of the compiler, so it stays as it is. The time of probes is not counted.
        """
        failed: list[BaseException] = []
        compiling: list[float] = []

        def recorded(config: KernelConfig) -> Resources:
            config = exact_copy(config)
            if type(config) is not KernelConfig:
                self._refuse("plan() called probe(config)", "a KernelConfig", config)
            start = time.perf_counter()
            try:
                return exact_copy(probe(config))  # type: ignore[no-any-return]
            except BaseException as error:
                failed.append(error)
                raise
            finally:
                compiling.append(time.perf_counter() - start)

        try:
            given = exact_copy(problem), exact_copy(device), recorded, dict(options)
            planned = self._call("plan", *given, excluded=compiling)
        except TridalError as error:
            cause = error.__cause__
            if cause is not None and cause in failed:
                raise cause from cause.__cause__
            raise
        if type(planned) is not LaunchPlan:
            self._refuse("plan()", "a LaunchPlan", planned)
        if type(planned.config) is not KernelConfig:
            self._refuse("plan().config", "a KernelConfig", planned.config)
        return planned

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """Returns the resources of a compiled kernel."""
        found = self._call("resources", copy.copy(asm), shared_memory)
        if type(found) is not Resources:
            self._refuse("resources()", "Resources", found)
        for field in fields(Resources):
            value = getattr(found, field.name)
            if type(value) is not int or value < 0:
                self._refuse(f"resources().{field.name}", "an integer of at least 0", value)
        return found

    def on_device(self, index: int) -> DeviceProperties:
        """Returns the properties of a device that computes. Checks its `stream` and `guard` once.

        Each call enters a guard, so this method enters two of them. An exception inside the second one has to leave it.
        """
        if index not in self._checked_devices:
            stream = self._call("stream", index)
            if type(stream) is not int or not 0 <= stream < 1 << 64:
                self._refuse(f"stream({index})", "an integer, 0 for a device without streams", stream)
            for raised in (None, _Inside()):
                with suppress(_Inside), self.entered(index):
                    if raised is not None:
                        raise raised
            self._checked_devices.add(index)
        properties = self.properties(index)
        if properties.target is None and not self.interpreted:
            self._refuse(f"properties({index}).target", "Triton's target, because kernels are compiled", None)
        return properties

    @contextmanager
    def entered(self, index: int) -> Iterator[None]:
        """Enters the plugin's guard of a device. Faults of the guard are PluginErrors."""
        guard = self._call("guard", index)
        if not isinstance(guard, AbstractContextManager):
            self._refuse(f"guard({index})", "a context manager", guard)
        doing, inside = "entering", None
        try:
            with guard:
                try:
                    yield
                except BaseException as error:
                    inside = error
                    raise
                finally:
                    doing = "leaving"
        except BaseException as error:
            if error is inside or isinstance(error, KeyboardInterrupt):
                raise
            raise PluginError(f"{self.label}: {doing} guard({index}) raised {describe_error(error)}") from error
        if inside is not None:
            raise PluginError(f"{self.label}: guard({index}) suppressed {describe_error(inside)}") from inside

    def _call(self, member: str, *arguments: Any, excluded: Sequence[float] = ()) -> Any:
        """Calls a member of the plugin and copies its result. Records the time without the `excluded` seconds.

        Raises:
            PlanError: the member raised a PlanError, for example because no plan fits on the device.
            PluginError: the member raised another exception.
        """
        start = time.perf_counter()
        try:
            return exact_copy(getattr(self.plugin, member)(*arguments))
        except PlanError as error:
            raise PlanError(f"{self.label}: {member}(): {error}") from error
        except BaseException as error:  # includes SystemExit
            if isinstance(error, KeyboardInterrupt) or (isinstance(error, PluginError) and self.label in str(error)):
                raise
            raise PluginError(f"{self.label}: {member}() raised {describe_error(error)}") from error
        finally:
            seconds = time.perf_counter() - start - sum(excluded)
            self.seconds[member] = max(self.seconds.get(member, 0.0), seconds)

    def _check_properties(self, what: str, found: Any) -> DeviceProperties:
        if type(found) is not DeviceProperties:
            self._refuse(what, "DeviceProperties", found)
        for name, expected, value in wrong_fields(found):
            self._refuse(f"{what}.{name}", expected, value)
        return found

    def _refuse(self, what: str, expected: str, found: object) -> NoReturn:
        raise PluginError(f"{self.label}: {what}: expected {expected}, found {describe_value(found)}")


@functools.lru_cache(maxsize=256)
def checked(plugin: Backend, origin: str) -> CheckedBackend:
    """Returns the `CheckedBackend` of a plugin. If the plugins are discovered again, it stays the same object."""
    return CheckedBackend(plugin, origin)
