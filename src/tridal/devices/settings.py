"""Settings: `tridal.use` > environment > YAML file > default, each value with where it came from.

Nothing is read on import. This module knows no backend: the options of backends are carried here and checked by
`tridal.registry`, which knows what each backend accepts.
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

DEVICE_FORM = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_]*)(:(?P<index>[0-9]+))?")
"""A backend's name or a torch device type, and perhaps an index."""

FIELDS: Mapping[str, Option] = {
    "device": Option(
        default="auto",
        expected="'auto', a backend's name or a torch device, with or without an index (name:1)",
        accepts=lambda value: isinstance(value, str) and DEVICE_FORM.fullmatch(value) is not None,
        help="the device that tridal.device() gives, and which of several backends serves the tensors of its type",
    ),
    "fallback": Option(
        default="torch",
        expected="'torch' or 'error'",
        accepts=lambda value: value in ("torch", "error"),
        help="what happens to tensors that no backend serves: torch computes them, or an error is raised",
    ),
    "batch_invariant": Option(
        default=False,
        expected="true or false",
        accepts=lambda value: isinstance(value, bool),
        help="whether a row's result is the same to the last bit whatever rows, and how many, are around it",
    ),
}
"""Every setting but the backends' own. A new one is a line here, a line in `Settings` and a parameter of `use`."""

VARIABLES: Mapping[str, str] = {
    "TRIDAL_CONFIG": "path of the YAML file",
    "TRIDAL_OVERRIDE_TORCH": "1: `import tridal` makes torch's own softmax a tridal one",
}
"""Environment variables that are not settings themselves. Those of settings follow from their names."""

PREFIX = "TRIDAL_"
NEAR_VARIABLE = 0.8
"""How near a variable's name has to be to be suggested: all share the prefix."""
DEFAULT = "default"
ENVIRONMENT = "environment "

_Layer: TypeAlias = dict[KeyPath, tuple[object, str]]


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """The settings in force, immutable. Compared and hashed by identity, so an instance can be a cache's key."""

    device: str
    fallback: str
    batch_invariant: bool
    backends: Mapping[str, Mapping[str, object]]
    """Options that were set, by backend and name; not yet checked, see `tridal.registry.options`."""
    sources: Mapping[str, str]
    """Where each value came from, by dotted key: "default", "environment TRIDAL_DEVICE", "tridal.use", "file:line"."""


_base: Settings | None = None
_lock = threading.RLock()
_context: ContextVar[Settings | None] = ContextVar("tridal_settings", default=None)
_overlays: dict[tuple[Settings, str], Settings] = {}


def current() -> Settings:
    """The settings in force here. Environment and file are read on first use; an error is raised again on the next."""
    return _context.get() or _base or _first()


def _first() -> Settings:
    with _lock:
        return _base or reload()


def reload() -> Settings:
    """Reads environment and file again. Settings of a surrounding `use` stay as they are."""
    global _base
    with _lock:
        _base = None
        _overlays.clear()
        path = config_file()
        file = {} if path is None else _file_layer(path)
        _base = _settings(_defaults() | file | _environment_layer(os.environ))
        return _base


def use(
    *,
    device: str | None = None,
    fallback: str | None = None,
    batch_invariant: bool | None = None,
    backends: Mapping[str, Mapping[str, object]] | None = None,
) -> _GeneratorContextManager[Settings]:
    """Settings for a block of code or, as a decorator, a plain function; None leaves a setting as it is.

    They hold in the thread or async task that enters the block, and in the tasks that it starts.

    Raises:
        SettingsError: at once, for a value that cannot be used.
    """
    given = {"device": device, "fallback": fallback, "batch_invariant": batch_invariant, "backends": backends}
    return _pushed(_layer({key: value for key, value in given.items() if value is not None}, lambda keys: "tridal.use"))


@contextmanager
def within(settings: Settings) -> Iterator[None]:
    """Settings that were in force elsewhere, for a block of code: a backward may run in a thread of its own."""
    token = _context.set(settings)
    try:
        yield
    finally:
        _context.reset(token)


@contextmanager
def _pushed(layer: _Layer) -> Iterator[Settings]:
    with within(_overlay(current(), layer)):
        yield current()


def _overlay(below: Settings, layer: _Layer) -> Settings:
    # The same `use` in a loop gives the same object, so that what others cache by settings neither grows nor misses.
    key = (below, repr(sorted(layer.items(), key=lambda item: item[0])))
    with _lock:
        if key not in _overlays:
            if len(_overlays) >= 64:
                _overlays.clear()
            _overlays[key] = _settings(_layer_of(below) | layer)
        return _overlays[key]


def read_file(path: str | os.PathLike[str]) -> Settings:
    """The settings that a file alone would give, on top of the defaults.

    Raises:
        SettingsError: naming file, line, key, what was expected and what was found.
    """
    return _settings(_defaults() | _file_layer(Path(path)))


def config_file() -> Path | None:
    """The file that is read: `TRIDAL_CONFIG`, else `tridal.yaml` here, else in the user's configuration folder."""
    named = os.environ.get("TRIDAL_CONFIG")
    if named:
        return Path(os.path.expanduser(named))
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    candidates = (Path("tridal.yaml"), Path(folder, "tridal", "tridal.yaml"))
    return next((path for path in candidates if os.path.lexists(path)), None)


def found(value: object) -> str:
    """A value as an error message shows it."""
    return "nothing" if value is None else reprlib.repr(value)


def variable(*keys: str) -> str:
    """The environment variable of a setting, given by its keys without "backends"."""
    return PREFIX + "_".join(keys).upper()


def _defaults() -> _Layer:
    return {(key,): (option.default, DEFAULT) for key, option in FIELDS.items()}


def _file_layer(path: Path) -> _Layer:
    data, lines = yaml_file.read(path, depth=3)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise SettingsError(f"{path}:1: expected a mapping such as 'device: auto', found {found(data)}")
    return _layer(data, lambda keys: f"{path}:{lines[keys]}")


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
            near = nearest(name, known, NEAR_VARIABLE)
            forms = ", ".join([*known, f"{PREFIX}<BACKEND>_<OPTION>"])
            raise SettingsError(f"{ENVIRONMENT}{name}: no such setting{near} (known: {forms})")
        layer[keys] = _checked(keys, yaml_file.scalar(text), ENVIRONMENT + name)
    return layer


def _layer(data: Mapping[Any, Any], where: Callable[[KeyPath], str]) -> _Layer:
    """Checks data of the file's shape and flattens it. `where` tells the source of the value at some keys."""
    layer: _Layer = {}
    for key, value in data.items():
        if key != "backends":
            layer[(key,)] = _checked((key,), value, where((key,)))
            continue
        for name, section in _section(("backends",), value, where):
            for option, setting in _section(("backends", name), section, where):
                keys = ("backends", name, option)
                layer[keys] = _checked(keys, setting, where(keys))
    return layer


def _section(keys: KeyPath, value: object, where: Callable[[KeyPath], str]) -> Iterator[tuple[str, object]]:
    if value is None:  # a section whose lines are all commented out
        return
    if not isinstance(value, Mapping):
        raise SettingsError(f"{where(keys)}: {'.'.join(keys)}: expected a mapping, found {found(value)}")
    for name, inner in value.items():
        yield str(name), inner


def _checked(keys: KeyPath, value: object, source: str) -> tuple[object, str]:
    if keys[0] == "backends":
        return value, source
    (key,) = keys
    if key not in FIELDS:
        known = [*FIELDS, "backends"]
        raise SettingsError(f"{source}: no setting is called {key!r}{nearest(key, known)} (known: {', '.join(known)})")
    if not FIELDS[key].accepts(value):
        raise SettingsError(f"{source}: {key}: expected {FIELDS[key].expected}, found {found(value)}")
    return value, source


def _layer_of(settings: Settings) -> _Layer:
    values: dict[KeyPath, object] = {(key,): getattr(settings, key) for key in FIELDS}
    for name, section in settings.backends.items():
        values |= {("backends", name, option): value for option, value in section.items()}
    return {keys: (value, settings.sources[".".join(keys)]) for keys, value in values.items()}


def _settings(layer: _Layer) -> Settings:
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
