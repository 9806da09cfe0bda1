"""Settings with the source of every value. Precedence: `tridal.use`, environment, YAML file, default.

Importing this module reads neither the environment nor a file. It does not know the backends: it stores their options
unchecked, and `tridal.devices.registry` checks them.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import _GeneratorContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from tridal.devices import yaml_file
from tridal.devices.lock import LOCK
from tridal.devices.types import Option
from tridal.devices.yaml_file import KeyPath
from tridal.errors import SettingsError, UnknownDeviceError, nearest

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
    "plugins": Option(
        default="all",
        expected="'all', the names of backends to load (a,b), or those not to load (-a,-b)",
        accepts=lambda value: isinstance(value, str) and bool(re.fullmatch(r"(-?)\w+(\s*,\s*\1\w+)*", value.strip())),
        help="the backends that are loaded; read when a process loads the first backend",
    ),
}
"""All settings except the backends' options. To add one, also add a field to `Settings` and a parameter to `use`."""

VARIABLES = ("TRIDAL_CONFIG", "TRIDAL_OVERRIDE_TORCH")
"""Environment variables that are not settings. `variable` returns the variable of a setting."""

PREFIX = "TRIDAL_"
DEFAULT = "default"
ENVIRONMENT = "environment "

_Layer: TypeAlias = dict[KeyPath, tuple[object, str]]  # (value, source) of each changed setting


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """The value and the source of every setting. Immutable, and hashed by identity, so that it can be a cache key."""

    device: str
    fallback: str
    batch_invariant: bool
    plugins: str
    backends: Mapping[str, Mapping[str, object]]
    """Options by backend and name. Only options that were set are present. `registry.options` checks them."""
    sources: Mapping[str, str]
    """Source of each value by dotted key: "default", "environment TRIDAL_DEVICE", "tridal.use" or "file:line"."""

    def __deepcopy__(self, memo: dict[int, object]) -> Settings:
        """Returns the same object, because it is immutable."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Supports pickle, which cannot store read-only mappings."""
        backends = {name: dict(options) for name, options in self.backends.items()}
        return _unpickle, ({key: getattr(self, key) for key in FIELDS}, backends, dict(self.sources))


def _unpickle(values: dict[str, Any], backends: Any, sources: Any) -> Settings:
    options = {name: MappingProxyType(section) for name, section in backends.items()}
    return Settings(**values, backends=MappingProxyType(options), sources=MappingProxyType(sources))


_DEFAULTS = Settings(
    **{key: option.default for key, option in FIELDS.items()},  # type: ignore[arg-type]
    backends=MappingProxyType({}),
    sources=MappingProxyType(dict.fromkeys(FIELDS, DEFAULT)),
)
_base: Settings | None = None  # from defaults, file and environment; None until the first use
_context: ContextVar[Settings | None] = ContextVar("tridal_settings", default=None)  # set inside a `use` block
_blocks: ContextVar[tuple[list[Settings], ...]] = ContextVar("tridal_use_blocks", default=())  # outermost first
_overlays: dict[tuple[Settings, str], Settings] = {}


def current() -> Settings:
    """Returns the current settings of this thread or async task. Raises SettingsError as `reload` does.

    The first call reads the environment and the file. If that fails, the next call tries again.
    """
    return _context.get() or _base or _load_once()


def _load_once() -> Settings:
    with LOCK:
        return _base or reload()


def reload() -> Settings:
    """Reads the environment and the file again, and returns the new settings. Active `use` blocks do not change.

    Raises SettingsError if the environment or the file has a wrong setting.
    """
    global _base
    with LOCK:
        _base = None
        _overlays.clear()
        path = config_file()
        _base = _changed(_DEFAULTS, ({} if path is None else _file_layer(path)) | _environment_layer())
        return _base


def read_file(path: str | os.PathLike[str]) -> Settings:
    """Returns the settings in a file, with the defaults for all others. Ignores the environment.

    Raises SettingsError with the file, the line, the key, the expected and the found value.
    """
    return _changed(_DEFAULTS, _file_layer(Path(path)))


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


def use(
    *,
    device: str | None = None,
    fallback: str | None = None,
    batch_invariant: bool | None = None,
    backends: Mapping[str, Mapping[str, object]] | None = None,
) -> _GeneratorContextManager[Settings]:
    """Changes settings inside a `with` block or, as a decorator, inside a plain function (not async, no generator).

    The change applies to the thread or async task that enters the block, and to the tasks that are started inside.
    An argument that is None does not change its setting. `backends` has options by backend and name, which are checked
    when a backend is chosen. For the other settings, see `FIELDS`. The context manager returns the new settings.

    Raises SettingsError for a wrong value. The call of `use` raises it, not the block.
    """
    arguments = {"device": device, "fallback": fallback, "batch_invariant": batch_invariant, "backends": backends}
    changes = {key: value for key, value in arguments.items() if value is not None}
    return _overlaid(_flatten(changes, lambda keys: "tridal.use"))


@contextmanager
def _overlaid(layer: _Layer) -> Iterator[Settings]:
    # Equal `use` blocks share one object. Caches with settings as keys then hit, and do not grow in a loop.
    key = (current(), repr(sorted(layer.items())))
    settings = _overlays.get(key)  # without the lock, which a thread holds while it compiles or interprets
    if settings is None:
        with LOCK:
            if len(_overlays) >= 64:
                _overlays.clear()
            settings = _overlays.setdefault(key, _changed(current(), layer))
    with restored(settings):
        yield settings


@contextmanager
def restored(settings: Settings) -> Iterator[None]:
    """Makes given settings current in a `with` block, for a backward that runs in another thread than its forward.

    Blocks may end in any order, as they do in generators. Each removes its own settings.
    """
    block = [settings]  # a list, because blocks are compared by identity and two can have the same settings
    _set_blocks((*_blocks.get(), block))
    try:
        yield
    finally:
        _set_blocks(tuple(other for other in _blocks.get() if other is not block))


def _set_blocks(blocks: tuple[list[Settings], ...]) -> None:
    _blocks.set(blocks)
    _context.set(blocks[-1][0] if blocks else None)


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


def _file_layer(path: Path) -> _Layer:
    data, lines = yaml_file.read(path, depth=3)
    if data is not None and not isinstance(data, dict):
        raise SettingsError(f"{path}:1: expected a mapping such as 'device: auto', found {describe_value(data)}")
    return _flatten(data or {}, lambda keys: f"{path}:{lines[keys]}")


def _environment_layer() -> _Layer:
    layer: _Layer = {}
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


def _flatten(data: Mapping[Any, Any], source_of: Callable[[KeyPath], str], section: KeyPath = ()) -> _Layer:
    """Checks nested data, with the structure of the settings file, and flattens it."""
    layer: _Layer = {}
    for key, value in data.items():
        keys = (*section, str(key))
        if keys[0] != "backends" or len(keys) == 3:
            layer[keys] = _checked(keys, value, source_of(keys))
        elif value is None or isinstance(value, Mapping):  # None is a section with all its lines commented out
            layer |= _flatten(value or {}, source_of, keys)
        else:
            found = describe_value(value)
            raise SettingsError(f"{source_of(keys)}: {'.'.join(keys)}: expected a mapping, found {found}")
    return layer


def _checked(keys: KeyPath, value: object, source: str) -> tuple[object, str]:
    """Returns (value, source). Raises SettingsError for a wrong value; options of backends are not checked."""
    key = keys[0]
    if key == "backends":
        return value, source
    if key not in FIELDS:
        known = [*FIELDS, "backends"]
        raise SettingsError(f"{source}: no setting is called {key!r}{nearest(key, known)} (known: {', '.join(known)})")
    if not FIELDS[key].accepts(value):
        raise SettingsError(f"{source}: {key}: expected {FIELDS[key].expected}, found {describe_value(value)}")
    return value, source


def _changed(base: Settings, layer: _Layer) -> Settings:
    """Returns a copy of `base` with the values and sources in `layer`."""
    fields: dict[str, Any] = {}
    backends = {name: dict(section) for name, section in base.backends.items()}
    for keys, (value, _) in layer.items():
        if keys[0] == "backends":
            backends.setdefault(keys[1], {})[keys[2]] = value
        else:
            fields[keys[0]] = value
    return replace(
        base,
        **fields,
        backends=MappingProxyType({name: MappingProxyType(section) for name, section in backends.items()}),
        sources=MappingProxyType({**base.sources, **{".".join(keys): source for keys, (_, source) in layer.items()}}),
    )
