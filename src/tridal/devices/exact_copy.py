"""Copies of the data that tridal and plugins exchange, so that a plugin cannot change it later."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields
from typing import Any

from tridal.devices.types import DeviceProperties, KernelConfig, LaunchPlan, Option, Problem, Resources

_DATA = (LaunchPlan, KernelConfig, Resources, DeviceProperties, Problem, Option)


def exact_copy(found: Any) -> Any:
    """Returns a copy whose parts have exactly the types of the protocol, not subclasses. Reads each field once.

    A subclass could return another value each time a field is read. Numbers and other objects stay as they are,
    because the checks accept only the types int, float and bool themselves.
    """
    for kind in _DATA:
        if isinstance(found, kind):
            return kind(**{field.name: exact_copy(getattr(found, field.name)) for field in fields(kind)})
    if isinstance(found, str):
        return str.__str__(found)
    if isinstance(found, tuple):
        return tuple(map(exact_copy, found))
    if isinstance(found, Mapping):
        return {exact_copy(key): exact_copy(value) for key, value in found.items()}
    if isinstance(found, AbstractSet):
        return frozenset(map(exact_copy, found))
    return found
