"""Settings with the source of every value. Precedence: `tridal.use`, environment, YAML file, TRITON_INTERPRET, default.

Importing this module reads neither the environment nor a file. It does not know the backends: it stores their options
unchecked, and `tridal.devices.registry` checks them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import _GeneratorContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tridal.devices import settings_file
from tridal.devices.lock import LOCK
from tridal.devices.setting_layers import DEFAULT as DEFAULT
from tridal.devices.setting_layers import FIELDS as FIELDS
from tridal.devices.setting_layers import PREFIX as PREFIX
from tridal.devices.setting_layers import VARIABLES as VARIABLES
from tridal.devices.setting_layers import Layer, environment_layer, file_layer, flatten, triton_layer
from tridal.devices.setting_layers import convert as convert
from tridal.devices.setting_layers import describe_value as describe_value
from tridal.devices.setting_layers import flag as flag
from tridal.devices.setting_layers import nearest_variable as nearest_variable
from tridal.devices.setting_layers import parse_device as parse_device
from tridal.devices.setting_layers import variable as variable
from tridal.devices.settings_file import config_file as config_file
from tridal.errors import SettingsError


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
        layer = triton_layer() | ({} if path is None else file_layer(path)) | environment_layer()
        _base = _changed(_DEFAULTS, layer)
        settings_file.warn_of_ignored()
        return _base


def read_file(path: str | os.PathLike[str]) -> Settings:
    """Returns the settings in a file, with the defaults for all others. Ignores the environment.

    Raises SettingsError with the file, the line, the key, the expected and the found value.
    """
    return _changed(_DEFAULTS, file_layer(Path(path)))


def check_file(path: str | os.PathLike[str]) -> Iterator[Settings | SettingsError]:
    """Yields every mistake in a file. Then yields, for each correct setting, Settings with only this one changed."""
    mistakes: list[SettingsError] = []
    try:
        layer = file_layer(Path(path), mistakes)
    except SettingsError as error:  # the file cannot be read
        mistakes, layer = [error], {}
    yield from mistakes
    yield from (_changed(_DEFAULTS, {keys: value}) for keys, value in layer.items())


def use(
    device: str | None = None,
    *,
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
    return _overlaid(flatten(changes, lambda keys: "tridal.use"))


@contextmanager
def _overlaid(layer: Layer) -> Iterator[Settings]:
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


def _changed(base: Settings, layer: Layer) -> Settings:
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
