"""Settings with the source of every value. Precedence: `tridal.use`, environment, YAML file, TRITON_INTERPRET, default.

Importing this module reads neither the environment nor a file. It does not know the backends: it stores their options
unchecked, and `tridal.devices.registry` checks them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import _GeneratorContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tridal.devices import setting_table, settings_file
from tridal.devices.config_override import ConfigOverride
from tridal.devices.lock import LOCK
from tridal.devices.setting_table import CONFIG, FIELDS, Entry, is_section
from tridal.devices.setting_table import flag as flag
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

    def __deepcopy__(self, memo: dict[int, object]) -> Settings:
        """Settings are immutable, so a copy is the same object."""
        return self


def _checked(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yields the entries of settings with their checked values. The options of backends are not checked.

    Raises SettingsError for the first mistake.
    """
    for keys, source, value in entries:
        if isinstance(value, SettingsError):
            raise value
        if not is_section(keys):
            yield keys, source, value if len(keys) > 1 else setting_table.checked_setting(keys[0], value, source)
        elif value is not None:  # None is a file or a section with all its lines commented out
            where, example = (f": {'.'.join(keys)}", "") if keys else ("", " such as 'device: auto'")
            found = setting_table.describe_value(value)
            raise SettingsError(f"{source}{where}: expected a mapping{example}, found {found}")


def _merged(base: Settings, checked: Iterable[Entry]) -> Settings:
    """Adds the values of entries to `base`. Later entries take precedence."""
    fields: dict[str, Any] = {key: getattr(base, key) for key in FIELDS}
    backends, sources = {name: dict(options) for name, options in base.backends.items()}, dict(base.sources)
    for keys, source, value in checked:
        sources[".".join(keys)] = source
        if keys[0] == "backends":
            backends.setdefault(keys[1], {})[keys[2]] = value
        else:
            fields[keys[0]] = value
    return Settings(**fields, backends=backends, sources=sources)


_DEFAULTS = Settings(
    **{key: option.default for key, option in FIELDS.items()},  # type: ignore[arg-type]
    backends={},
    sources=dict.fromkeys(FIELDS, setting_table.DEFAULT),
)
_base: Settings | None = None  # from defaults, file and environment; None until the first use
_context: ContextVar[Settings | None] = ContextVar("tridal_settings", default=None)  # set inside a `use` block
_blocks: ContextVar[tuple[list[Settings], ...]] = ContextVar("tridal_use_blocks", default=())  # outermost first
_overlays: dict[tuple[Settings, str], Settings] = {}


def current() -> Settings:
    """The current settings of this thread or async task. Raises SettingsError as `reload` does.

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
        entries: list[Entry] = []
        if setting_table.triton_interprets():
            source = setting_table.ENVIRONMENT + setting_table.TRITON_INTERPRET
            entries.append((("device",), source, setting_table.INTERPRETER))
        if (path := config_file()) is not None:
            named_by = f"{setting_table.ENVIRONMENT}{CONFIG}: " if os.environ.get(CONFIG) else ""
            entries += _file_entries(path, named_by)
        _base = _merged(_DEFAULTS, _checked(chain(entries, _environment_entries())))
        settings_file.warn_of_ignored()
        return _base


def read_file(path: str | os.PathLike[str]) -> Settings:
    """Reads the settings in a file, with the defaults for all others. Ignores the environment.

    Raises SettingsError with the file, the line, the key, the expected and the found value.

    Example:
        >>> with open("mine.yaml", "w") as file:
        ...     print("fallback: error", file=file)
        >>> settings = tridal.settings.read_file("mine.yaml")
        >>> settings.fallback, settings.sources["fallback"]
        ('error', 'mine.yaml:1')
    """
    return _merged(_DEFAULTS, _checked(_file_entries(Path(path))))


def check_file(path: str | os.PathLike[str]) -> Iterator[Settings | SettingsError]:
    """Yields, for each setting in a file, its mistake, or Settings with only this one changed."""
    try:
        for entry in _file_entries(Path(path)):
            try:
                yield _merged(_DEFAULTS, _checked([entry]))
            except SettingsError as error:
                yield error
    except SettingsError as error:  # the file cannot be read
        yield error


def _environment_entries() -> Iterator[Entry]:
    """Yields the settings in the environment. Raises SettingsError for an unknown variable or a wrong flag."""
    prefix, variables = setting_table.PREFIX, setting_table.VARIABLES
    for name in setting_table.FLAGS:
        flag(name)
    for name, text in sorted(os.environ.items()):
        if not name.startswith(prefix) or name in variables or not text.strip():
            continue
        key, source = name.removeprefix(prefix).lower(), setting_table.ENVIRONMENT + name
        backend, _, option = key.partition("_")
        keys = (key,) if key in FIELDS else ("backends", backend, option)
        if not all(keys) or name != name.upper():  # names that differ in case only could contradict each other
            known = ", ".join([*variables, *map(setting_table.variable, FIELDS), f"{prefix}<BACKEND>_<OPTION>"])
            raise SettingsError(f"{source}: no such setting{setting_table.nearest_variable(source)} (known: {known})")
        from tridal.devices import yaml_file  # imports yaml, which most programs do not need

        yield keys, source, yaml_file.parse_text(text, scalar=key != "kernel_configs")


def _file_entries(path: Path, prefix: str = "") -> Iterator[Entry]:
    """Yields the settings in a file. The error for a file that cannot be read starts with `prefix`."""
    from tridal.devices import yaml_file  # imports yaml, which most programs do not need

    try:
        yield from yaml_file.entries(path)
    except OSError as error:
        raise SettingsError(f"{prefix}{path}: cannot be read: {error.strerror or error}") from error


def use(
    device: str | None = None,
    *,
    fallback: str | None = None,
    batch_invariant: bool | None = None,
    dump: str | None = None,
    kernel_configs: Sequence[Mapping[str, object]] | None = None,
    backends: Mapping[str, Mapping[str, object]] | None = None,
) -> _GeneratorContextManager[Settings]:
    """Changes settings inside a `with` block or, as a decorator, inside a plain function (not async, not a generator).

    The change applies to the thread or async task that enters the block, and to tasks started inside. None leaves a
    setting unchanged. `backends` maps the name of a backend to options by name, which are checked when a backend is
    selected. `FIELDS` describes the other settings. The context manager returns the new settings.

    A wrong value raises SettingsError in the call of `use`, not in the block.

    Example:
        >>> with tridal.use(device="interpreter", batch_invariant=True) as settings:
        ...     settings.device, tridal.device()
        ('interpreter', device(type='cpu'))
    """
    changes = {key: value for key, value in locals().items() if value is not None}
    return _overlaid([*_checked(setting_table.mapping_entries(changes, "tridal.use"))])


@contextmanager
def _overlaid(entries: Sequence[Entry]) -> Iterator[Settings]:
    # Equal `use` blocks share one object. Caches with settings as keys then hit, and do not grow in a loop.
    key = (current(), repr(entries))
    settings = _overlays.get(key)
    if settings is None:
        if len(_overlays) >= 64:
            _overlays.clear()
        settings = _overlays.setdefault(key, _merged(key[0], entries))
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
