"""Checks the fields of the device properties that a plugin returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from tridal.devices.types import DeviceProperties


def wrong_fields(properties: DeviceProperties) -> Iterator[tuple[str, str, Any]]:
    """Yields the name, the expected value in words, and the value of each wrong field."""
    for field in fields(DeviceProperties):
        value, expected = getattr(properties, field.name), ""
        if field.type == "str":
            valid, expected = type(value) is str and bool(value), "text"
        elif field.type in ("int", "int | None"):
            valid = (value is None and field.type != "int") or (type(value) is int and value > 0)
            expected = "a positive integer" + ("" if field.type == "int" else ", or None if it is not known")
        elif field.name == "aliases":
            valid = type(value) is tuple and all(type(alias) is str for alias in value)
            expected = "a tuple of texts"
        else:
            valid, expected = value is None or _is_target(value), "(backend, architecture, warp size)"
            if valid and value is not None and properties.warp_size is not None:
                valid = value[2] == properties.warp_size
                expected += f" with the warp size {properties.warp_size} of `warp_size`"
        if not valid:
            yield field.name, expected, value


def _is_target(value: Any) -> bool:
    kinds = [type(part) for part in value] if type(value) is tuple else []
    return kinds in ([str, int, int], [str, str, int]) and value[2] >= 0
