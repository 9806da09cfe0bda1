"""The setting `kernel_configs`: kernel configurations that take the place of those that a backend would choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from tridal.devices.plugin_data import wrong_fields
from tridal.devices.types import DTYPE_ALIASES, ITEMSIZE, SCHEDULES, KernelConfig, Problem
from tridal.errors import SettingsError, nearest

EXPECTED = "a list of mappings with the keys kernel, dtype, cols and config"
_KEYS = ("kernel", "dtype", "cols", "config")
_FIELDS = tuple(field.name for field in fields(KernelConfig))
_REQUIRED = tuple(field.name for field in fields(KernelConfig) if field.default is MISSING)


@dataclass(frozen=True, slots=True, repr=False)
class ConfigOverride:
    """The configuration of a kernel for a dtype and a range of columns."""

    location: str
    """The source of the setting and the index in its list, for messages."""
    kernel: str
    dtype: str
    """The dtype of the first tensor that the kernel reads."""
    cols: tuple[int, int]
    """The first and the last number of columns."""
    fields: tuple[tuple[str, Any], ...]
    """The names and values of the fields that are given."""

    def __repr__(self) -> str:
        config = ", ".join(f"{name}: {value}" for name, value in self.fields)
        return f"{self.kernel} {self.dtype} {self.cols[0]} to {self.cols[1]} columns: {config}"

    def config(self, problem: Problem) -> KernelConfig:
        """Makes the configuration. By default, cooperative programs are as many as a row has blocks of columns."""
        given = dict(self.fields)
        blocks = -(-problem.cols // given["cols"]) if given["schedule"] == "cooperative" else 1
        return KernelConfig(**{"programs_per_row": blocks, **given})


def parse(entries: Sequence[object] | None, location: str) -> tuple[ConfigOverride, ...] | None:
    """Reads the overrides in a list of mappings.

    Raises SettingsError for a wrong value. The message has the `location`, the index in the list and the key.
    """
    if entries is None:
        return None
    return tuple(_override(entry, f"{location}[{index}]") for index, entry in enumerate(entries))


def _override(entry: Any, location: str) -> ConfigOverride:
    _check_keys(entry, _KEYS, _KEYS, location)
    kernel, dtype, cols, config = (entry[key] for key in _KEYS)
    dtype = DTYPE_ALIASES.get(str(dtype), str(dtype))
    if dtype not in ITEMSIZE:
        raise SettingsError(f"{location}: dtype: expected one of {', '.join(ITEMSIZE)}, found {dtype!r}")
    ends = (cols, cols) if type(cols) is int else tuple(cols) if isinstance(cols, (list, tuple)) else ()
    if [type(end) for end in ends] != [int, int] or not 1 <= ends[0] <= ends[1]:
        raise SettingsError(f"{location}: cols: expected a positive integer or [first, last], found {cols!r}")
    location_of_config = f"{location}: config"
    _check_keys(config, _FIELDS, _REQUIRED, location_of_config)
    if config["schedule"] not in SCHEDULES:
        known = f"{nearest(str(config['schedule']), SCHEDULES)} (known: {', '.join(SCHEDULES)})"
        raise SettingsError(f"{location_of_config}: no schedule is called {config['schedule']!r}{known}")
    for name, found, expected in wrong_fields(KernelConfig(**config)):
        raise SettingsError(f"{location_of_config}: {name}: expected {expected}, found {found!r}")
    return ConfigOverride(location, str(kernel), dtype, ends, tuple(config.items()))


def _check_keys(found: Any, known: Sequence[str], required: Sequence[str], location: str) -> None:
    """Raises SettingsError for a value that is no mapping, and for a key that is unknown or missing."""
    if not isinstance(found, Mapping):
        raise SettingsError(f"{location}: expected a mapping with the keys {', '.join(required)}, found {found!r}")
    for name in found:
        if name not in known:
            near = f"{nearest(str(name), known)} (known: {', '.join(known)})"
            raise SettingsError(f"{location}: no key is called {name!r}{near}")
    if missing := [name for name in required if name not in found]:
        raise SettingsError(f"{location}: {', '.join(missing)}: missing")
