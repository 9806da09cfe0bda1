"""Finds the settings file, and files that look like one but are not read."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from tridal.devices.yaml_file import read_bytes

NAME = "tridal.yaml"
VARIABLE = "TRIDAL_CONFIG"
_SIMILAR_NAMES = ("tridal.yml", ".tridal.yaml", ".tridal.yml")
_USER_NAMES = ("config.yaml", "config.yml")
_TOML = "pyproject.toml"
_TOML_TABLE = re.compile(rb"^\s*\[\s*tool\s*\.\s*tridal\s*[.\]]", re.MULTILINE)

_log = logging.getLogger("tridal")


def config_file() -> Path | None:
    """Returns the path of the settings file, or None if there is none.

    It is the path in `TRIDAL_CONFIG` if that is set, even if the file is missing. Otherwise it is `tridal.yaml` in the
    working folder or in the nearest of its parents, or else in `$XDG_CONFIG_HOME/tridal` (by default `~/.config`).

    Example:
        >>> import os
        >>> os.environ["TRIDAL_CONFIG"] = "mine.yaml"
        >>> str(tridal.settings.config_file())
        'mine.yaml'
    """
    explicit = os.environ.get(VARIABLE)
    if explicit:
        return Path(os.path.expanduser(explicit))
    candidates = (folder / NAME for folder in (*_project_folders(), _user_folder()))
    return next((path for path in candidates if os.path.lexists(path)), None)


def named_by() -> str:
    """Returns "environment TRIDAL_CONFIG: " if that names the settings file, else ""."""
    return f"environment {VARIABLE}: " if os.environ.get(VARIABLE) else ""


def ignored() -> Iterator[tuple[Path, str]]:
    """Yields the files that a user can mistake for the settings file in force, and why tridal does not read them."""
    used, user = config_file(), _user_folder()
    for folder in (*_project_folders(), user):
        if used is not None and os.path.lexists(folder / NAME) and not _same(folder / NAME, used):
            yield folder / NAME, f"{used} takes its place, because only one settings file is read"
        for path in (folder / name for name in (*_SIMILAR_NAMES, *_USER_NAMES * (folder == user))):
            if os.path.isfile(path) and (used is None or not _same(path, used)):
                yield path, f"only a file with the name {NAME} is read; rename it"
        if _has_toml_table(folder / _TOML):
            yield folder / _TOML, f"[tool.tridal] is not read; move the settings to {NAME} in the same folder"


def warn_of_ignored() -> None:
    """Logs a warning for each file with a wrong name, once per process, unless `TRIDAL_CONFIG` names the file."""
    if not os.environ.get(VARIABLE):
        for path, reason in ignored():
            if path.name != NAME:
                _warn(path, reason)


@functools.lru_cache(maxsize=64)
def _warn(path: Path, reason: str) -> None:
    _log.warning("the settings in %s are ignored: %s", path, reason)


def _project_folders() -> tuple[Path, ...]:
    """Returns the working folder, as ".", and its parents. A working folder that was removed has no parents."""
    try:
        return Path(), *Path.cwd().parents
    except FileNotFoundError:
        return (Path(),)


def _same(first: Path, second: Path) -> bool:
    return os.path.realpath(first) == os.path.realpath(second)


def _user_folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config"), "tridal")


def _has_toml_table(path: Path) -> bool:
    try:
        return _TOML_TABLE.search(read_bytes(path)) is not None
    except OSError:
        return False
