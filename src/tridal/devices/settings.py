"""Settings with the source of every value. Precedence: `tridal.use`, environment, YAML file, TRITON_INTERPRET, default.

Importing this module reads neither the environment nor a file. It does not know the backends: it stores their options
unchecked, and `tridal.devices.registry` checks them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import _GeneratorContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tridal.devices import settings_file
from tridal.devices.config_override import ConfigOverride
from tridal.devices.lock import LOCK
from tridal.devices.setting_layers import (
    DEFAULT,
    FIELDS,
    Layer,
    argument_layer,
    environment_layer,
    file_layer,
    triton_layer,
)
from tridal.devices.setting_layers import flag as flag
from tridal.devices.settings_file import config_file as config_file
from tridal.errors import SettingsError


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """The value and the source of every setting. Immutable, and hashed by identity, so that it can be a cache key."""

    device: str
    fallback: str
    batch_invariant: bool
    dump: str | None
    kernel_configs: tuple[ConfigOverride, ...] | None
    plugins: str
    backends: Mapping[str, Mapping[str, object]]
    """Options by backend and name. Only options that were set are present. `registry.options` checks them."""
    sources: Mapping[str, str]
    """Source of each value by dotted key: "default", "environment TRIDAL_DEVICE", "tridal.use" or "file:line"."""
    layer: Layer = field(repr=False)
    """All values and their sources, from which the other fields are made."""

    def __deepcopy__(self, memo: dict[int, object]) -> Settings:
        """Returns the same object, because it is immutable."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Supports pickle, which cannot store read-only mappings."""
        return _of_layer, (self.layer,)


def _of_layer(layer: Layer) -> Settings:
    """Returns the settings with the values and sources of a layer that has all of `FIELDS`."""
    backends: dict[str, dict[str, object]] = {}
    for keys, (value, _) in layer.items():
        if keys[0] == "backends":
            backends.setdefault(keys[1], {})[keys[2]] = value
    fields: dict[str, Any] = {keys[0]: value for keys, (value, _) in layer.items() if keys[0] in FIELDS}
    return Settings(
        **fields,
        backends=MappingProxyType({name: MappingProxyType(section) for name, section in backends.items()}),
        sources=MappingProxyType({".".join(keys): source for keys, (_, source) in layer.items()}),
        layer=layer,
    )


_DEFAULTS: Layer = {(key,): (option.default, DEFAULT) for key, option in FIELDS.items()}
_base: Settings | None = None  # from defaults, file and environment; None until the first use
_context: ContextVar[Settings | None] = ContextVar("tridal_settings", default=None)  # set inside a `use` block
_blocks: ContextVar[tuple[list[Settings], ...]] = ContextVar("tridal_use_blocks", default=())  # outermost first
_overlays: dict[tuple[Settings, str], Settings] = {}


def current() -> Settings:
    """Returns the current settings of this thread or async task. Raises SettingsError as `reload` does.

    The first call reads the environment and the file. If that fails, the next call tries again.

    Example:
        >>> with tridal.use(fallback="error"):
        ...     settings = tridal.settings.current()
        >>> settings.fallback, settings.sources["fallback"]
        ('error', 'tridal.use')
    """
    return _context.get() or _base or _load_once()


def _load_once() -> Settings:
    with LOCK:
        return _base or reload()


def reload() -> Settings:
    """Reads the environment and the file again, and returns the new settings. Active `use` blocks do not change.

    Raises SettingsError if the environment or the file has a wrong setting.

    Example:
        >>> import os
        >>> os.environ["TRIDAL_FALLBACK"] = "error"
        >>> tridal.settings.reload().fallback
        'error'
    """
    global _base
    with LOCK:
        _base = None
        _overlays.clear()
        path = config_file()
        in_file = {} if path is None else file_layer(path, named_by=settings_file.named_by())
        _base = _of_layer(_DEFAULTS | triton_layer() | in_file | environment_layer())
        settings_file.warn_of_ignored()
        return _base


def read_file(path: str | os.PathLike[str]) -> Settings:
    """Returns the settings in a file, with the defaults for all others. Ignores the environment.

    Raises SettingsError with the file, the line, the key, the expected and the found value.

    Example:
        >>> with open("mine.yaml", "w") as file:
        ...     print("fallback: error", file=file)
        >>> settings = tridal.settings.read_file("mine.yaml")
        >>> settings.fallback, settings.sources["fallback"]
        ('error', 'mine.yaml:1')
    """
    return _of_layer(_DEFAULTS | file_layer(Path(path)))


def check_file(path: str | os.PathLike[str]) -> Iterator[Settings | SettingsError]:
    """Yields every mistake in a file. Then yields, for each correct setting, Settings with only this one changed."""
    mistakes: list[SettingsError] = []
    try:
        layer = file_layer(Path(path), mistakes)
    except SettingsError as error:  # the file cannot be read
        mistakes, layer = [error], {}
    yield from mistakes
    yield from (_of_layer(_DEFAULTS | {keys: value}) for keys, value in layer.items())


def use(
    device: str | None = None,
    *,
    fallback: str | None = None,
    batch_invariant: bool | None = None,
    dump: str | None = None,
    kernel_configs: Sequence[Mapping[str, object]] | None = None,
    backends: Mapping[str, Mapping[str, object]] | None = None,
) -> _GeneratorContextManager[Settings]:
    """Changes settings inside a `with` block or, as a decorator, inside a plain function (not async, no generator).

    The change applies to the thread or async task that enters the block, and to the tasks that are started inside.
    An argument that is None does not change its setting. `backends` has options by backend and name, which are checked
    when a backend is chosen. For the other settings, see `FIELDS`. The context manager returns the new settings.

    Raises SettingsError for a wrong value. The call of `use` raises it, not the block.

    Example:
        >>> with tridal.use(device="interpreter", batch_invariant=True) as settings:
        ...     settings.device, tridal.device()
        ('interpreter', device(type='cpu'))
    """
    arguments: dict[str, Any] = {"device": device, "fallback": fallback, "backends": backends}
    arguments |= {"batch_invariant": batch_invariant, "dump": dump, "kernel_configs": kernel_configs}
    changes = {key: value for key, value in arguments.items() if value is not None}
    return _overlaid(argument_layer(changes, "tridal.use"))


@contextmanager
def _overlaid(layer: Layer) -> Iterator[Settings]:
    # Equal `use` blocks share one object. Caches with settings as keys then hit, and do not grow in a loop.
    key = (current(), repr(sorted(layer.items())))
    settings = _overlays.get(key)  # without the lock, which a thread holds while it compiles or interprets
    if settings is None:
        with LOCK:
            if len(_overlays) >= 64:
                _overlays.clear()
            settings = _overlays.setdefault(key, _of_layer(current().layer | layer))
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
