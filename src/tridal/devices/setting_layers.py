"""The settings and their values in the environment and in a file, as layers: the value and source of each setting.

A layer contains the options of backends without a check, because this module does not know the backends.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tridal.devices import settings_file, yaml_file
from tridal.devices.types import Option
from tridal.devices.yaml_file import KeyPath
from tridal.errors import SettingsError, UnknownDeviceError, nearest

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
    "plugins": Option(
        default="all",
        expected="'all', the names of backends to load (a,b), or those not to load (-a,-b)",
        accepts=lambda value: isinstance(value, str) and bool(re.fullmatch(r"(-?)\w+(\s*,\s*\1\w+)*", value.strip())),
        help="the backends that are loaded; read when a process loads the first backend",
    ),
}
"""All settings except the backends' options. To add one, also add a field to `Settings` and a parameter to `use`."""

FLAGS = ("TRIDAL_OVERRIDE_TORCH", "TRIDAL_LOG_CALLS", "TRIDAL_KERNELIZE")
"""Boolean environment variables that are not settings. `flag` reads them."""
VARIABLES = (settings_file.VARIABLE, *FLAGS)
"""Environment variables that are not settings. `variable` returns the variable of a setting."""

TRITON_INTERPRET = "TRITON_INTERPRET"
"""Triton's variable for its interpreter. If it is true, it changes the default of `device` to `INTERPRETER`."""
INTERPRETER = "interpreter"

_TRUE = ("1", "true", "yes", "on")

PREFIX = "TRIDAL_"
DEFAULT = "default"
ENVIRONMENT = "environment "

Layer: TypeAlias = dict[KeyPath, tuple[object, str]]
"""(value, source) of each changed setting."""


def describe_value(value: object) -> str:
    """Formats a value for an error message: shortened, and "nothing" for None."""
    return "nothing" if value is None else reprlib.repr(value)


def variable(*keys: str) -> str:
    """Returns the environment variable of a setting: `variable("device")`, or `variable(backend_name, option)`."""
    return PREFIX + "_".join(keys).upper()


def nearest_variable(source: str, of_options: Sequence[str] = ()) -> str:
    """Returns a suggestion as `nearest` does if a setting comes from a misspelt environment variable, else ""."""
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


def convert(option: Option, value: object) -> object:
    """Returns the value of an option. For a boolean option, 1 and 0 mean true and false."""
    is_flag = isinstance(option.default, bool) and type(value) is int and value in (0, 1)
    return bool(value) if is_flag else value


def flag(name: str) -> bool:
    """Returns whether an environment variable is true. Raises SettingsError if its value is not a boolean."""
    value = os.environ.get(name, "").strip().lower()
    if value not in (*_TRUE, "", "0", "false", "no", "off"):
        raise SettingsError(f"{ENVIRONMENT}{name}: expected 1 or 0, found {value!r}")
    return value in _TRUE


def file_layer(path: Path, mistakes: list[SettingsError] | None = None) -> Layer:
    """Returns the settings in a file. Raises SettingsError, or appends mistakes in values to `mistakes`."""
    data, lines = yaml_file.read(path, 3, mistakes)
    if data is not None and not isinstance(data, dict):
        raise SettingsError(f"{path}:1: expected a mapping such as 'device: auto', found {describe_value(data)}")
    return flatten(data or {}, lambda keys: f"{path}:{lines[keys]}", mistakes)


def triton_layer() -> Layer:
    """Returns the device that Triton's own variable selects."""
    chosen = os.environ.get(TRITON_INTERPRET, "").strip().lower() in (*_TRUE, "y")
    return {("device",): (INTERPRETER, ENVIRONMENT + TRITON_INTERPRET)} if chosen else {}


def environment_layer() -> Layer:
    """Returns the settings in the environment. Raises SettingsError for a wrong variable or value, also of `FLAGS`."""
    for name in FLAGS:
        flag(name)
    layer: Layer = {}
    for name, text in sorted(os.environ.items()):
        if not name.startswith(PREFIX) or name in VARIABLES or not text.strip():
            continue
        key, source = name.removeprefix(PREFIX).lower(), ENVIRONMENT + name
        backend, _, option = key.partition("_")
        keys = (key,) if key in FIELDS else ("backends", backend, option)
        if not all(keys):
            known = ", ".join([*VARIABLES, *map(variable, FIELDS), f"{PREFIX}<BACKEND>_<OPTION>"])
            raise SettingsError(f"{source}: no such setting{nearest_variable(source)} (known: {known})")
        layer[keys] = _checked(keys, yaml_file.parse_scalar(text), source)
    return layer


def flatten(
    data: Mapping[Any, Any],
    source_of: Callable[[KeyPath], str],
    mistakes: list[SettingsError] | None = None,
    section: KeyPath = (),
) -> Layer:
    """Checks nested data, with the structure of the settings file, and flattens it.

    Raises SettingsError for the first mistake, or appends every mistake to `mistakes`.
    """
    layer: Layer = {}
    for key, value in data.items():
        keys = (*section, str(key))
        try:
            if keys[0] != "backends" or len(keys) == 3:
                layer[keys] = _checked(keys, value, source_of(keys))
            elif value is None or isinstance(value, Mapping):  # None is a section with all its lines commented out
                layer |= flatten(value or {}, source_of, mistakes, keys)
            else:
                found = describe_value(value)
                raise SettingsError(f"{source_of(keys)}: {'.'.join(keys)}: expected a mapping, found {found}")
        except SettingsError as error:
            if mistakes is None:
                raise
            mistakes.append(error)
    return layer


def _checked(keys: KeyPath, value: object, source: str) -> tuple[object, str]:
    """Returns (value, source). Raises SettingsError for a wrong value; options of backends are not checked."""
    key = keys[0]
    if key == "backends":
        return value, source
    if key not in FIELDS:
        known = [*FIELDS, "backends"]
        raise SettingsError(f"{source}: no setting is called {key!r}{nearest(key, known)} (known: {', '.join(known)})")
    value = convert(FIELDS[key], value)
    if not FIELDS[key].accepts(value):
        raise SettingsError(f"{source}: {key}: expected {FIELDS[key].expected}, found {describe_value(value)}")
    return value, source
