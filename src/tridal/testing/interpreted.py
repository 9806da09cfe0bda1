"""A compiled backend whose plans Triton's interpreter runs with CPU tensors, so that the suite needs no device."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

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
from tridal.testing.changed_backend import with_members
from tridal.testing.plan_overrides import column_loop


def interpreted(backend: Backend, arch: str | None = None) -> Backend:
    """Returns a backend for CPU tensors with the plans of a compiled backend, which Triton's interpreter runs.

    Register it, and run the suite with it. The conformance suite then finds plans that give wrong results or are
    rejected, in all layouts, dtypes and sizes. It does not test what the device's compiler makes of a kernel. Probes
    compile for the architecture if Triton can; otherwise they report 32 registers. Because the interpreter runs one
    program after another, it cannot run cooperative plans: probes do not compile them, and column loops replace them.

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
    properties, schedules = known[name], backend.schedules - {"cooperative"}
    compiles = can_compile(properties.target)

    def runs(config: KernelConfig) -> bool:
        return config.schedule in schedules and config.programs_per_row == 1

    def plan(problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        def probed(config: KernelConfig) -> Resources:
            return probe(config) if compiles and runs(config) else Resources(32, 0, 0)

        made = backend.plan(problem, device, probed, options)
        made = replace(made, config=replace(made.config, exp2_bias=None))  # corrects an error that only devices make
        return made if runs(made.config) else column_loop(replace(made, occupancy=None), problem)

    return with_members(
        backend, name=f"{backend.name}interpreted", device_type="cpu", interpreted=True, schedules=schedules,
        unavailable=_unavailable, device_count=lambda: 1, architectures=dict, properties=lambda index: properties,
        plan=plan, stream=lambda index: 0, guard=lambda index: nullcontext(),
    )  # fmt: skip


def _unavailable() -> str | None:
    """Returns why Triton's interpreter cannot run, or None."""
    reasons = [known.unavailable() for known in registry.loaded() if known.interpreted and known.origin != IN_CODE]
    return reasons[0] if reasons else "no backend for Triton's interpreter is installed"
