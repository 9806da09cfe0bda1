"""A compiled backend whose plans Triton's interpreter runs with CPU tensors, so that the suite needs no device."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, cast

from tridal.devices import registry
from tridal.devices.entry_points import IN_CODE
from tridal.devices.types import (
    Backend,
    DeviceProperties,
    KernelConfig,
    LaunchPlan,
    Probe,
    Problem,
    Resources,
    find_architecture,
)
from tridal.errors import UnknownDeviceError
from tridal.runtime.compiler import can_compile
from tridal.testing.plan_overrides import PLAN_OVERRIDES


def interpreted(backend: Backend, arch: str | None = None) -> Backend:
    """Returns a backend for CPU tensors with the plans of a compiled backend, which Triton's interpreter runs.

    Register it, and run the suite with it. The conformance suite then finds plans that give wrong results or are
    refused, in all layouts, dtypes and sizes. It does not test what the device's compiler makes of a kernel. Probes
    compile for the architecture if Triton can; otherwise they report 32 registers. The interpreter runs one program
    after another, so it cannot run cooperative plans: probes do not compile them, and column loops replace them.

    Args:
        backend: the backend. Its device need not be present.
        arch: the name of one of its architectures, by default the first one.

    Raises:
        UnknownDeviceError: the backend has no such architecture.

    Example:
        >>> backend = tridal.testing.interpreted(tridal.registry.get("cuda"), "h100")
        >>> tridal.registry.register(backend)
        >>> with tridal.use(device=backend.name):
        ...     tridal.softmax(torch.zeros(2, 4))
        tensor([[0.2500, 0.2500, 0.2500, 0.2500],
                [0.2500, 0.2500, 0.2500, 0.2500]])
        >>> tridal.registry.unregister(backend.name)
    """
    known = backend.architectures()
    name = next(iter(known), None) if arch is None else find_architecture(arch, known)
    if name is None:
        shown = ", ".join(known) or "none"
        raise UnknownDeviceError(f"backend {backend.name!r} has no architecture {arch!r} (it has: {shown})")
    return cast(Backend, _Interpreted(backend, known[name]))


class _Interpreted:
    """A backend whose other members are those of the compiled backend."""

    device_type, interpreted = "cpu", True

    def __init__(self, backend: Backend, device: DeviceProperties) -> None:
        self.name = f"{backend.name}interpreted"
        self.schedules = backend.schedules - {"cooperative"}
        self.features = backend.features
        self._backend, self._device = backend, device

    def __getattr__(self, member: str) -> Any:
        return getattr(self._backend, member)

    def unavailable(self) -> str | None:
        """Returns why Triton's interpreter cannot run, or None."""
        reasons = [known.unavailable() for known in registry.loaded() if known.interpreted and known.origin != IN_CODE]
        return reasons[0] if reasons else "no backend for Triton's interpreter is installed"

    def device_count(self) -> int:
        """Returns 1: the CPU."""
        return 1

    def architectures(self) -> Mapping[str, DeviceProperties]:
        """Returns none: the architectures are those of the compiled backend."""
        return {}

    def properties(self, index: int) -> DeviceProperties:
        """Returns the properties of the architecture."""
        return self._device

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        """Returns the plan of the compiled backend, without what only a device can do."""

        compiles = can_compile(device.target)

        def probed(config: KernelConfig) -> Resources:
            return probe(config) if compiles and config.schedule in self.schedules else Resources(32, 0, 0)

        made = self._backend.plan(problem, device, probed, options)
        made = replace(made, config=replace(made.config, exp2_bias=None))  # corrects an error that only devices make
        if made.config.schedule != "cooperative":
            return made
        column_loop = PLAN_OVERRIDES["column_loop"]
        assert column_loop is not None
        return column_loop(replace(made, occupancy=None), problem)

    def stream(self, index: int) -> int:
        """Returns 0: the CPU has no streams."""
        return 0

    def guard(self, index: int) -> AbstractContextManager[None]:
        """Returns an empty context."""
        return nullcontext()
