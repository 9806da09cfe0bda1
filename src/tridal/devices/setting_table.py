"""The table of settings: their defaults, checks and environment variables.

It does not know the backends, so `tridal.devices.registry` checks their options.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from tridal.devices import config_override
from tridal.devices.types import Option
from tridal.errors import SettingsError, UnknownDeviceError, nearest

KeyPath: TypeAlias = tuple[str, ...]
"""`("device",)`, or `("backends", name, option)`."""
Entry: TypeAlias = tuple[KeyPath, str, object]
"""The keys of a value, its source, and the value, or a SettingsError for a mistake in it."""

DEVICE_PATTERN = re.compile(r"(?!auto:)(?P<name>[A-Za-z][A-Za-z0-9_]*)(:(?P<index>[0-9]+))?")
"""Matches "auto", and a backend's name or a torch device type with an optional index."""


FIELDS: Mapping[str, Option] = {
    "device": Option(
        default="auto",
        expected="'auto', or a backend's name or a torch device, which can have an index (name:1)",
        accepts=lambda value: isinstance(value, str) and DEVICE_PATTERN.fullmatch(value) is not None,
        help="the device that tridal.device() returns, and the backend that serves tensors of its type",
    ),
    "fallback": Option(
        default="torch",
        expected="'torch' or 'error'",
        accepts=lambda value: value in ("torch", "error"),
        help="for tensors that no backend serves: 'torch' computes them with torch, 'error' raises an error",
    ),
    "batch_invariant": Option(
        default=False,
        expected="true or false",
        accepts=lambda value: isinstance(value, bool),
        help="whether a row's result is bitwise the same in every batch",
    ),
    "dump": Option(
        default=None,
        expected="the name of a folder",
        accepts=lambda value: value is None or (isinstance(value, str) and bool(value.strip())),
        help="the folder in which the source of each kernel that runs is written",
    ),
    "kernel_configs": Option(
        default=None,
        expected=config_override.EXPECTED,
        accepts=lambda value: value is None or isinstance(value, (list, tuple)),
        help="kernel configurations for a GPU that was not measured, by kernel, dtype and columns",
    ),
    "plugins": Option(
        default="all",
        expected="'all', the names of backends to load (a,b), or those not to load (-a,-b)",
        accepts=lambda value: isinstance(value, str) and bool(re.fullmatch(r"(-?)\w+(\s*,\s*\1\w+)*", value.strip())),
        help="the backends that are loaded; read when a process loads the first backend",
    ),
}
"""All settings except the backends' options. To add one, also add a field to `Settings` and a parameter to `use`."""

CONFIG = "TRIDAL_CONFIG"
FLAGS = ("TRIDAL_OVERRIDE_TORCH", "TRIDAL_LOG_CALLS", "TRIDAL_KERNELIZE")
"""Boolean environment variables that are not settings. `flag` reads them."""
VARIABLES = (CONFIG, *FLAGS)
"""Environment variables that are not settings. `variable` returns the variable of a setting."""

TRITON_INTERPRET = "TRITON_INTERPRET"
"""Triton's variable for its interpreter. If it is true, it changes the default of `device` to `INTERPRETER`."""
INTERPRETER = "interpreter"

_TRUE = ("1", "true", "yes", "on")

PREFIX = "TRIDAL_"
DEFAULT = "default"
ENVIRONMENT = "environment "


def describe_value(value: object) -> str:
    """Formats a value for an error message: shortened, and "nothing" for None."""
    return "nothing" if value is None else reprlib.repr(value)


def variable(*keys: str) -> str:
    """Names the environment variable of a setting: `variable("device")`, or `variable(backend_name, option)`."""
    return PREFIX + "_".join(keys).upper()


def nearest_variable(source: str, of_options: Sequence[str] = ()) -> str:
    """Suggests a name as `nearest` does, if a setting comes from a misspelt environment variable."""
    if not source.startswith(ENVIRONMENT):
        return ""
    known = [*VARIABLES, *map(variable, FIELDS), *of_options]
    return nearest(source.removeprefix(ENVIRONMENT), known, cutoff=0.8)  # high, because all names share a prefix


def parse_device(text: str) -> tuple[str, int | None]:
    """Splits "npu:1" into "npu" and 1, or "npu" into "npu" and None. Raises UnknownDeviceError for any other form."""
    match = DEVICE_PATTERN.fullmatch(text)
    if match is None:
        raise UnknownDeviceError(f"{text!r} is not a device: expected {FIELDS['device'].expected}")
    return match["name"], None if match["index"] is None else int(match["index"])


def checked_value(option: Option, value: object, location: str) -> object:
    """Checks the value of an option. For a boolean option, 1 and 0 mean true and false.

    Raises SettingsError if the option does not accept it. The message starts with `location`.
    """
    is_flag = isinstance(option.default, bool) and type(value) is int and value in (0, 1)
    found = bool(value) if is_flag else value
    try:
        accepted = option.accepts(found)
    except Exception:  # of a plugin: for example, a comparison of a string with a number
        accepted = False
    if not accepted:
        raise SettingsError(f"{location}: expected {option.expected}, found {describe_value(value)}")
    return found


def checked_setting(key: str, value: object, source: str) -> object:
    """Checks the value of a setting, not of a backend's option. Raises SettingsError if the key or value is wrong."""
    if key not in FIELDS:
        known = [*FIELDS, "backends"]
        raise SettingsError(f"{source}: no setting is called {key!r}{nearest(key, known)} (known: {', '.join(known)})")
    location = f"{source}: {key}"
    found: Any = checked_value(FIELDS[key], value, location)
    return config_override.parse(found, location) if key == "kernel_configs" else found


def is_section(keys: KeyPath) -> bool:
    """A path of keys to all settings, to all backends, or to those of a backend has a mapping as its value."""
    return not keys or (keys[0] == "backends" and len(keys) < 3)


def flag(name: str) -> bool:
    """Reads an environment variable. Raises SettingsError if its value is not a boolean."""
    value = os.environ.get(name, "").strip().lower()
    if value not in (*_TRUE, "", "0", "false", "no", "off"):
        raise SettingsError(f"{ENVIRONMENT}{name}: expected 1 or 0, found {value!r}")
    return value in _TRUE


def triton_interprets() -> bool:
    """Tells whether Triton's own variable selects its interpreter."""
    return os.environ.get(TRITON_INTERPRET, "").strip().lower() in (*_TRUE, "y")


def mapping_entries(value: object, source: str, keys: KeyPath = ()) -> Iterator[Entry]:
    """Yields the settings in nested mappings with the structure of the file."""
    if is_section(keys) and isinstance(value, Mapping):
        for key, inner in value.items():
            yield from mapping_entries(inner, source, (*keys, str(key)))
    else:
        yield keys, source, value
