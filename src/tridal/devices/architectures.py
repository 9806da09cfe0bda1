"""The architectures that the registered backends can plan for. Their devices need not be present."""

from __future__ import annotations

from tridal.devices import registry
from tridal.devices.checked_backend import CheckedBackend
from tridal.devices.types import DeviceProperties
from tridal.errors import TridalError


def find_architectures() -> tuple[dict[str, tuple[CheckedBackend, DeviceProperties]], list[str]]:
    """Returns all architectures that backends can plan for, by name, and descriptions of the faults of plugins.

    If several backends provide a name, the first one in `registered` keeps it. Another one gets "backend:name".
    """
    known: dict[str, tuple[CheckedBackend, DeviceProperties]] = {}
    problems = []
    for backend in registry.loaded():
        try:
            found = backend.architectures()
        except TridalError as error:
            problems.append(str(error))
            continue
        for name, properties in found.items():
            if name in known:
                own, owner = f"{backend.name}:{name}", known[name][0].label
                problems.append(f"{backend.label}: architectures(): {owner} has {name!r}, so this one is {own!r}")
                name = own
            known[name] = backend, properties
    return known, problems
