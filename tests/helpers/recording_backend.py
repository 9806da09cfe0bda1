"""The interpreter as another backend, which records the problems that it plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


@contextmanager
def serving(backend: RecordingBackend) -> Iterator[None]:
    """Within this context, a backend is registered and serves CPU tensors."""
    registry.register(backend)
    try:
        with tridal.use(device=backend.name):
            yield
    finally:
        registry.unregister(backend.name)
