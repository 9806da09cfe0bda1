"""The interpreter as another backend, which records the problems that it plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import tridal
from tridal.devices import registry
from tridal.devices.types import DeviceProperties, LaunchPlan, Probe, Problem
from tridal_interpreter import Interpreter


class RecordingBackend(Interpreter):
    """The interpreter, with a list of the problems that it has planned."""

    name = "recording"

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        self.problems.append(problem)
        return super().plan(problem, device, probe, options)


class RowsDecide(RecordingBackend):
    """Its plans for few rows add the columns in another order than those for many rows."""

    def plan(self, problem: Problem, device: DeviceProperties, probe: Probe, options: Mapping[str, Any]) -> LaunchPlan:
        plan = super().plan(problem, device, probe, options)
        if problem.rows > 100 or problem.column_writes:
            return plan
        config = replace(plan.config, schedule="column_loop", cols=8)
        return replace(plan, config=config)


@contextmanager
def serving(backend: RecordingBackend) -> Iterator[None]:
    """Within this context, a backend is registered and serves CPU tensors."""
    registry.register(backend)
    try:
        with tridal.use(device=backend.name):
            yield
    finally:
        registry.unregister(backend.name)
