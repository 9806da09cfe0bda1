"""The settings and their values in the environment and in a file, as layers: the value and source of each setting.

A layer contains the options of backends without a check, because this module does not know the backends.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tridal.devices import config_override, settings_file, yaml_file
from tridal.devices.types import Option
from tridal.devices.yaml_file import Entry, KeyPath
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
    "dump": Option(
        default=None,
        expected="the name of a folder",
        accepts=lambda value: value is None or (isinstance(value, str) and bool(value.strip())),
        help="the folder in which the source of each kernel that runs is written",
    ),
    "kernel_configs": Option(
        default=None,
        expected=config_override.EXPECTED,
        accepts=lambda value: value is None or isinstance(value, (str, list, tuple)),
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


def checked_value(option: Option, value: object, location: str) -> object:
    """Returns the value of an option. For a boolean option, 1 and 0 mean true and false.

    Raises SettingsError if the option does not accept it. The message starts with `location`.
    """
    is_flag = isinstance(option.default, bool) and type(value) is int and value in (0, 1)
    found = bool(value) if is_flag else value
    try:
        accepted = bool(option.accepts(found))
    except KeyboardInterrupt:
        raise
    except BaseException:  # of a plugin: for example, a comparison of a string with a number
        accepted = False
    if not accepted:
        raise SettingsError(f"{location}: expected {option.expected}, found {describe_value(value)}")
    return found


def flag(name: str) -> bool:
    """Returns whether an environment variable is true. Raises SettingsError if its value is not a boolean."""
    value = os.environ.get(name, "").strip().lower()
    if value not in (*_TRUE, "", "0", "false", "no", "off"):
        raise SettingsError(f"{ENVIRONMENT}{name}: expected 1 or 0, found {value!r}")
    return value in _TRUE


def triton_layer() -> Layer:
    """Returns the device that Triton's own variable selects."""
    chosen = os.environ.get(TRITON_INTERPRET, "").strip().lower() in (*_TRUE, "y")
    return {("device",): (INTERPRETER, ENVIRONMENT + TRITON_INTERPRET)} if chosen else {}


def file_layer(path: Path, mistakes: list[SettingsError] | None = None, named_by: str = "") -> Layer:
    """Returns the settings in a file. Raises SettingsError, or appends mistakes in values to `mistakes`.

    The error for a file that cannot be read starts with `named_by`.
    """
    return _layer(yaml_file.entries(path, _is_section, named_by), mistakes)


def environment_layer() -> Layer:
    """Returns the settings in the environment. Raises SettingsError for a wrong variable or value, also of `FLAGS`."""
    for name in FLAGS:
        flag(name)
    return _layer(_environment())


def argument_layer(arguments: Mapping[Any, Any], source: str) -> Layer:
    """Returns the settings in nested mappings with the structure of the file. Raises SettingsError for a mistake."""
    return _layer(_flat(arguments, source))


def _environment() -> Iterator[Entry]:
    for name, text in sorted(os.environ.items()):
        if not name.startswith(PREFIX) or name in VARIABLES or not text.strip():
            continue
        key, source = name.removeprefix(PREFIX).lower(), ENVIRONMENT + name
        backend, _, option = key.partition("_")
        keys = (key,) if key in FIELDS else ("backends", backend, option)
        if not all(keys) or name != name.upper():  # names that differ in case only could contradict each other
            known = ", ".join([*VARIABLES, *map(variable, FIELDS), f"{PREFIX}<BACKEND>_<OPTION>"])
            raise SettingsError(f"{source}: no such setting{nearest_variable(source)} (known: {known})")
        yield keys, source, yaml_file.parse_text(text, scalar=True)


def _flat(value: object, source: str, keys: KeyPath = ()) -> Iterator[Entry]:
    if _is_section(keys) and isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, source, (*keys, str(key)))
    else:
        yield keys, source, value


def _is_section(keys: KeyPath) -> bool:
    """Returns whether the value of a path of keys is a mapping: all settings, all backends, or those of a backend."""
    return not keys or (keys[0] == "backends" and len(keys) < 3)


def _layer(entries: Iterable[Entry], mistakes: list[SettingsError] | None = None) -> Layer:
    """Checks entries. Raises SettingsError for the first mistake, or appends every mistake to `mistakes`."""
    layer: Layer = {}
    for keys, source, value in entries:
        try:
            if not _is_section(keys):
                layer[keys] = _checked(keys, value, source), source
            elif isinstance(value, SettingsError):
                raise value
            elif value is not None:  # None is a file or a section with all its lines commented out
                where, example = (f": {'.'.join(keys)}", "") if keys else ("", " such as 'device: auto'")
                raise SettingsError(f"{source}{where}: expected a mapping{example}, found {describe_value(value)}")
        except SettingsError as error:
            if mistakes is None:
                raise
            mistakes.append(error)
    return layer


def _checked(keys: KeyPath, value: object, source: str) -> object:
    """Returns a value. Raises SettingsError for a wrong one; options of backends are not checked."""
    key = keys[0]
    if isinstance(value, SettingsError):
        raise value
    if key == "backends":
        return value
    if key not in FIELDS:
        known = [*FIELDS, "backends"]
        raise SettingsError(f"{source}: no setting is called {key!r}{nearest(key, known)} (known: {', '.join(known)})")
    location = f"{source}: {key}"
    found = checked_value(FIELDS[key], value, location)
    return config_override.parse(found, location) if key == "kernel_configs" else found
