"""The protocol of a backend, and a base class with defaults. Imports the standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from tridal.devices.plans import KernelConfig, LaunchPlan, Resources
from tridal.devices.problem import DeviceProperties, Problem

PROTOCOLS = (2, 2)
"""The oldest and the newest version of the protocol `Backend` that this version of tridal supports."""
UPGRADES: Mapping[int, str] = {
    1: "plans state in `programs` the largest number of programs if persistent, else None; remove with_row_range, "
    "row_range, tiles_per_group and column_range, and set protocol = 2"
}
"""What the author of a plugin changes to upgrade it from a version that is not supported."""


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of one backend."""

    default: object
    """The value if the user sets none: text, a number, a bool or None."""
    expected: str
    """The accepted values in words, for an error message."""
    accepts: Callable[[object], bool] = field(repr=False)
    """accepts(value) returns whether a value is accepted. If it raises, the value is not accepted."""
    help: str = ""
    """What the option does, in words."""


KERNEL_CONFIG = "kernel_config"
"""Key in the `options` of `Backend.plan` for the `KernelConfig` that the setting `kernel_configs` has for a call."""

Probe: TypeAlias = Callable[[KernelConfig], Resources]
"""Compiles the problem's kernel with a configuration and reports its resources. Results are cached."""


@runtime_checkable
class Backend(Protocol):
    """Protocol of backends. An entry point of the group `tridal.backends` names an instance or a module with this API.

    It has no state. `BackendBase` has defaults for most members.
    """

    protocol: int
    """The version of this protocol that the backend was written for, now 2."""
    name: str
    """The name in `TRIDAL_DEVICE`. The entry point has the same name."""
    device_type: str
    """`torch.device.type` of its tensors. Several backends may serve one type; the settings choose one."""
    dtypes: frozenset[str]
    """Names of the floating-point dtypes that its kernels can read and write. torch computes other dtypes."""
    schedules: frozenset[str]
    """The members of `SCHEDULES` that its plans may use."""
    features: frozenset[str]
    """The members of `FEATURES` that its plans may use.

    "peel", "reload", "lanes" and "rest_cols" allow the fields of `KernelConfig` with these names. With "scale_mask",
    plans may assume that scaling and masking need no smaller tiles, although they take more memory.
    """
    interpreted: bool
    """Whether its kernels run in Triton's interpreter. Such a backend is used only if it is requested by name."""
    options: Mapping[str, Option]
    """Options of the backend by name."""
    install: str
    """One line that tells a user how to install the backend."""

    def unavailable(self) -> str | None:
        """Returns why the backend cannot run on this machine, or None if it can. Must be cheap and must not raise."""
        return None

    def device_count(self) -> int:
        """Counts the devices that are present."""
        return 1

    def properties(self, index: int) -> DeviceProperties:
        """The properties of the device with this index, which is present."""
        raise NotImplementedError

    def architectures(self) -> Mapping[str, DeviceProperties]:
        """The properties of known devices, present or not, by the names that `tridal plan --arch` takes."""
        raise NotImplementedError

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """Returns the plan for a problem of at least one element. `options` holds a value for each option.

        The problem has rounded numbers of rows, see `round_rows`. The plan serves all calls with this problem.

        If `options` contains `KERNEL_CONFIG`, the plan uses this configuration, which has been checked like that of a
        plan. A backend may ignore it; a user who sets a configuration then gets an error.
        """
        raise NotImplementedError

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """Returns the resources of a compiled kernel. `asm` has the compiler's output by stage, such as "cubin"."""
        raise NotImplementedError

    def stream(self, index: int) -> int:
        """Returns the raw handle of the device's current stream, or 0 if the device has no streams."""
        return 0

    def guard(self, index: int) -> AbstractContextManager[Any]:
        """Returns a context manager that makes the device the current one."""
        return nullcontext()


class BackendBase(Backend):
    """Base class of backends with defaults. A subclass sets `protocol`, `name` and `device_type` and defines `plan`.

    It also sets `devices` or defines `properties`. The defaults are for one device that is always available and has no
    streams.
    """

    protocol: int
    name: str
    device_type: str
    dtypes = frozenset({"float16", "bfloat16", "float32"})
    schedules = frozenset({"whole_row", "column_loop"})
    features: frozenset[str] = frozenset()
    interpreted = False
    options: Mapping[str, Option] = {}
    install = "see the documentation of its package"
    devices: Mapping[str, DeviceProperties] = {}
    """Properties by the name of the architecture. The first entry is the device that is present."""

    def properties(self, index: int) -> DeviceProperties:
        """The first entry of `devices`."""
        return next(iter(self.devices.values()))

    def architectures(self) -> Mapping[str, DeviceProperties]:
        """The attribute `devices`."""
        return self.devices

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """Every subclass has to define it."""
        raise NotImplementedError(f"{type(self).__name__} does not define plan")

    def resources(self, asm: Mapping[str, Any], shared_memory: int) -> Resources:
        """Raises NotImplementedError. Define it if plans use `probe` or the schedule "cooperative"."""
        raise NotImplementedError(f"{type(self).__name__} does not define resources, which probes need")
