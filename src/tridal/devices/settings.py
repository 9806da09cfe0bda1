"""Settings with the source of every value. Precedence: `tridal.use`, environment, YAML file, default.

Importing this module reads neither the environment nor a file. This module does not know the backends. It stores their
options unchecked, and `tridal.devices.registry` checks them.
"""

from __future__ import annotations

import os
import re
import reprlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from tridal.devices import yaml_file
from tridal.devices.types import Option
from tridal.devices.yaml_file import KeyPath
from tridal.errors import SettingsError, nearest

if TYPE_CHECKING:
    from contextlib import _GeneratorContextManager

DEVICE_PATTERN = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_]*)(:(?P<index>[0-9]+))?")
"""Matches a backend's name or a torch device type, with an optional index."""

FIELDS: Mapping[str, Option] = {
    "device": Option(
        default="auto",
        expected="'auto', a backend's name or a torch device, with or without an index (name:1)",
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
}
"""All settings except the backends' options. To add one, also add a field to `Settings` and a parameter to `use`."""

VARIABLES: Mapping[str, str] = {
    "TRIDAL_CONFIG": "path of the YAML file",
    "TRIDAL_OVERRIDE_TORCH": "1: `import tridal` makes torch's functions use tridal",
}
"""Environment variables that are not settings. `variable` gives the variable of a setting."""

PREFIX = "TRIDAL_"
VARIABLE_SIMILARITY = 0.8
"""Minimum similarity of a suggested variable. It is high because all variables share the prefix."""
DEFAULT = "default"
ENVIRONMENT = "environment "

_Layer: TypeAlias = dict[KeyPath, tuple[object, str]]  # the value and the source of each key


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """The value and the source of every setting. Immutable, and hashed by identity, so that it can be a cache key."""

    device: str
    fallback: str
    batch_invariant: bool
    backends: Mapping[str, Mapping[str, object]]
    """Options by backend and name. Only options that were set are present. `registry.options` checks them."""
    sources: Mapping[str, str]
    """Source of each value by dotted key: "default", "environment TRIDAL_DEVICE", "tridal.use" or "file:line"."""


_base: Settings | None = None  # from defaults, file and environment; None until the first use
_lock = threading.RLock()
_context: ContextVar[Settings | None] = ContextVar("tridal_settings", default=None)  # set inside a `use` block
_overlays: dict[tuple[Settings, str], Settings] = {}


def current() -> Settings:
    """Returns the current settings of this thread or async task.

    The first call reads the environment and the file. If that fails, the next call tries again.

    Raises:
        SettingsError: the environment or the file has a wrong setting.
    """
    return _context.get() or _base or _load_once()


def _load_once() -> Settings:
    with _lock:
        return _base or reload()


def reload() -> Settings:
    """Reads the environment and the file again, and returns the new settings. Active `use` blocks do not change.

    Raises:
        SettingsError: the environment or the file has a wrong setting.
    """
    global _base
    with _lock:
        _base = None
        _overlays.clear()
        path = config_file()
        file = {} if path is None else _file_layer(path)
        _base = _from_layer(_default_layer() | file | _environment_layer(os.environ))
        return _base


def use(
    *,
    device: str | None = None,
    fallback: str | None = None,
    batch_invariant: bool | None = None,
    backends: Mapping[str, Mapping[str, object]] | None = None,
) -> _GeneratorContextManager[Settings]:
    """Changes settings inside a `with` block or, as a decorator, inside a plain function (not async, no generator).

    The change applies to the thread or async task that enters the block, and to the tasks that are started inside.
    An argument that is None does not change its setting.

    Args:
        device: "auto", a backend's name or a torch device, with or without an index.
        fallback: for tensors that no backend serves: "torch" computes them with torch, "error" raises an error.
        batch_invariant: whether a row's result is bitwise the same in every batch.
        backends: options by backend and name. They are checked when a backend is chosen.

    Returns:
        A context manager that gives the new settings.

    Raises:
        SettingsError: a value is wrong. The call of `use` raises it, not the block.
    """
    arguments = {"device": device, "fallback": fallback, "batch_invariant": batch_invariant, "backends": backends}
    changes = {key: value for key, value in arguments.items() if value is not None}
    return _overlaid(_flatten(changes, lambda keys: "tridal.use"))


@contextmanager
def restored(settings: Settings) -> Iterator[None]:
    """Makes given settings current in a `with` block, for a backward that runs in another thread than its forward."""
    token = _context.set(settings)
    try:
        yield
    finally:
        _context.reset(token)


@contextmanager
def _overlaid(layer: _Layer) -> Iterator[Settings]:
    with restored(_overlay(current(), layer)):
        yield current()


def _overlay(base: Settings, layer: _Layer) -> Settings:
    # Equal `use` blocks share one object. Caches with settings as keys then hit, and do not grow in a loop.
    key = (base, repr(sorted(layer.items(), key=lambda item: item[0])))
    with _lock:
        if key not in _overlays:
            if len(_overlays) >= 64:
                _overlays.clear()
            _overlays[key] = _from_layer(_to_layer(base) | layer)
        return _overlays[key]


def read_file(path: str | os.PathLike[str]) -> Settings:
    """Returns the settings in a file, with the defaults for all others. Ignores the environment.

    Raises:
        SettingsError: the file cannot be read or has a wrong setting. The message gives the file, the line, the key,
            the expected and the found value.
    """
    return _from_layer(_default_layer() | _file_layer(Path(path)))


def config_file() -> Path | None:
    """Returns the path of the settings file, or None if there is none.

    It is the path in `TRIDAL_CONFIG` if that is set, even if the file is missing. Otherwise it is the first of
    `./tridal.yaml` and `$XDG_CONFIG_HOME/tridal/tridal.yaml` (by default in `~/.config`) that exists.
    """
    explicit = os.environ.get("TRIDAL_CONFIG")
    if explicit:
        return Path(os.path.expanduser(explicit))
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    candidates = (Path("tridal.yaml"), Path(folder, "tridal", "tridal.yaml"))
    return next((path for path in candidates if os.path.lexists(path)), None)


def describe_value(value: object) -> str:
    """Formats a value for an error message: shortened, and "nothing" for None."""
    return "nothing" if value is None else reprlib.repr(value)


def variable(*keys: str) -> str:
    """Returns the environment variable of a setting: `variable("device")`, or `variable(backend_name, option)`."""
    return PREFIX + "_".join(keys).upper()


def _default_layer() -> _Layer:
    return {(key,): (option.default, DEFAULT) for key, option in FIELDS.items()}


def _file_layer(path: Path) -> _Layer:
    data, lines = yaml_file.read(path, depth=3)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise SettingsError(f"{path}:1: expected a mapping such as 'device: auto', found {describe_value(data)}")
    return _flatten(data, lambda keys: f"{path}:{lines[keys]}")


def _environment_layer(environment: Mapping[str, str]) -> _Layer:
    layer: _Layer = {}
    for name, text in sorted(environment.items()):
        if not name.startswith(PREFIX) or name in VARIABLES or not text.strip():
            continue
        key = name.removeprefix(PREFIX).lower()
        backend, _, option = key.partition("_")
        keys = (key,) if key in FIELDS else ("backends", backend, option)
        if not all(keys):
            known = [*VARIABLES, *map(variable, FIELDS)]
            near = nearest(name, known, VARIABLE_SIMILARITY)
            forms = ", ".join([*known, f"{PREFIX}<BACKEND>_<OPTION>"])
            raise SettingsError(f"{ENVIRONMENT}{name}: no such setting{near} (known: {forms})")
        layer[keys] = _layer_entry(keys, yaml_file.parse_scalar(text), ENVIRONMENT + name)
    return layer


def _flatten(data: Mapping[Any, Any], source_of: Callable[[KeyPath], str]) -> _Layer:
    """Checks nested data, with the structure of the settings file, and flattens it."""
    layer: _Layer = {}
    for key, value in data.items():
        if key != "backends":
            layer[(key,)] = _layer_entry((key,), value, source_of((key,)))
            continue
        for name, section in _items(("backends",), value, source_of):
            for option, option_value in _items(("backends", name), section, source_of):
                keys = ("backends", name, option)
                layer[keys] = _layer_entry(keys, option_value, source_of(keys))
    return layer


def _items(keys: KeyPath, value: object, source_of: Callable[[KeyPath], str]) -> Iterator[tuple[str, object]]:
    """Yields the items of the section at `keys`."""
    if value is None:  # an empty section, for example one with all its lines commented out
        return
    if not isinstance(value, Mapping):
        raise SettingsError(f"{source_of(keys)}: {'.'.join(keys)}: expected a mapping, found {describe_value(value)}")
    for name, inner in value.items():
        yield str(name), inner


def _layer_entry(keys: KeyPath, value: object, source: str) -> tuple[object, str]:
    """Checks a value and returns its layer entry (value, source). Does not check options of backends."""
    if keys[0] == "backends":
        return value, source
    (key,) = keys
    if key not in FIELDS:
        known = [*FIELDS, "backends"]
        raise SettingsError(f"{source}: no setting is called {key!r}{nearest(key, known)} (known: {', '.join(known)})")
    if not FIELDS[key].accepts(value):
        raise SettingsError(f"{source}: {key}: expected {FIELDS[key].expected}, found {describe_value(value)}")
    return value, source


def _to_layer(settings: Settings) -> _Layer:
    values: dict[KeyPath, object] = {(key,): getattr(settings, key) for key in FIELDS}
    for name, section in settings.backends.items():
        values |= {("backends", name, option): value for option, value in section.items()}
    return {keys: (value, settings.sources[".".join(keys)]) for keys, value in values.items()}


def _from_layer(layer: _Layer) -> Settings:
    fields: dict[str, Any] = {}
    backends: dict[str, dict[str, object]] = {}
    for keys, (value, _) in layer.items():
        if keys[0] == "backends":
            backends.setdefault(keys[1], {})[keys[2]] = value
        else:
            fields[keys[0]] = value
    return Settings(
        **fields,
        backends=MappingProxyType({name: MappingProxyType(section) for name, section in backends.items()}),
        sources=MappingProxyType({".".join(keys): source for keys, (_, source) in layer.items()}),
    )
