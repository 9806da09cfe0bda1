"""The implementation that the suite checks: the functions of the ops, and the device of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from tridal.devices import registry, settings
from tridal.devices.types import Backend, LaunchPlan, Problem
from tridal.ops import table
from tridal.pytorch.path.function import FUNCTIONS
from tridal.pytorch.path.row_functions import row_function
from tridal.testing.changed_backend import with_members
from tridal.testing.plan_overrides import PLAN_OVERRIDES, PlanOverride


@dataclass(frozen=True, slots=True)
class Implementation:
    """The functions to check, and the device of their tensors. The functions have the arguments of tridal's."""

    device: torch.device
    function: Callable[[str], Callable[..., torch.Tensor]]
    """function(name) returns the function of the op with this name."""
    interpreted: bool = False
    """Whether Triton's interpreter runs the kernels. It is less precise than a device, see `Arithmetic.of`."""


def public_function(op: str) -> Callable[..., torch.Tensor]:
    """Returns tridal's function for the op with this name. Registers the op if it was not used before.

    Raises:
        PlanError: the op is unknown or cannot be used. The message suggests similar names.
    """
    return FUNCTIONS.get(op) or row_function(table.op_named(op))


def with_plans(backend: Backend, suffix: str, override: PlanOverride) -> Backend:
    """Overrides the plans of a backend, and adds a suffix to its name."""

    def plan(problem: Problem, *arguments: Any) -> LaunchPlan:
        return override(backend.plan(problem, *arguments), problem)

    return with_members(backend, name=f"{backend.name}{suffix}", plan=plan)


@contextmanager
def overridden(backend: Backend, suffix: str, override: PlanOverride) -> Iterator[str]:
    """Registers a backend with overridden plans until the context ends. Yields the backend's name."""
    registered = with_plans(backend, suffix, override)
    registry.register(registered)
    try:
        yield registered.name
    finally:
        registry.unregister(registered.name)


@contextmanager
def implementation(backend: Backend, plan: str = "planned", index: int | None = None) -> Iterator[Implementation]:
    """Yields tridal's functions and a device of the backend. In the context, the backend computes all calls.

    `plan` is a key of `PLAN_OVERRIDES`. `index` is the device index; None is the current device.

    Raises:
        DeviceUnavailableError: the backend is not available here.

    Example:
        >>> backend = tridal.registry.available("interpreter")
        >>> with tridal.testing.implementation(backend) as tested:
        ...     tested.function("softmax")(torch.ones(1, 4, device=tested.device))
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    registry.available(backend.name)
    override = PLAN_OVERRIDES[plan]
    suffix = plan.replace("+", "").replace("_", "")
    context = nullcontext(backend.name) if override is None else overridden(backend, suffix, override)
    with context as name, settings.use(device=name, fallback="error"):
        device = torch.device(backend.device_type if index is None else f"{backend.device_type}:{index}")
        yield Implementation(device, public_function, interpreted=backend.interpreted)
