"""Finds the settings file, and files that look like one but are not read."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tridal.devices.setting_table import CONFIG

NAME = "tridal.yaml"
_SIMILAR_NAMES = ("tridal.yml", ".tridal.yaml", ".tridal.yml")
_TOML = "pyproject.toml"
_TOML_TABLE = re.compile(rb"^\s*\[\s*tool\s*\.\s*tridal\s*[.\]]", re.MULTILINE)

_warn_once = functools.lru_cache(maxsize=64)(logging.getLogger("tridal").warning)


def config_file() -> Path | None:
    """Finds the settings file, if there is one.

    It is the path in `TRIDAL_CONFIG` if that is set, even if the file is missing. Otherwise it is `tridal.yaml` in the
    working folder or in the nearest of its parents, or else in `$XDG_CONFIG_HOME/tridal` (by default `~/.config`).

    Example:
        >>> import os
        >>> os.environ["TRIDAL_CONFIG"] = "mine.yaml"
        >>> str(tridal.settings.config_file())
        'mine.yaml'
    """
    explicit = os.environ.get(CONFIG)
    if explicit:
        return Path(os.path.expanduser(explicit))
    candidates = (folder / NAME for folder in (*_project_folders(), _user_folder()))
    return next((path for path in candidates if os.path.lexists(path)), None)


def ignored() -> Iterator[tuple[Path, str]]:
    """Yields the files that a user can mistake for the settings file in force, and why tridal does not read them."""
    used = config_file()
    used_path = used and os.path.realpath(used)
    for folder in (*_project_folders(), _user_folder()):
        if used and os.path.lexists(folder / NAME) and os.path.realpath(folder / NAME) != used_path:
            yield folder / NAME, f"{used} takes its place, because only one settings file is read"
        for path in (folder / name for name in _SIMILAR_NAMES):
            if os.path.isfile(path) and os.path.realpath(path) != used_path:
                yield path, f"only a file with the name {NAME} is read; rename it"
        with suppress(OSError):
            if _TOML_TABLE.search((folder / _TOML).read_bytes()):
                yield folder / _TOML, f"[tool.tridal] is not read; move the settings to {NAME} in the same folder"


def warn_of_ignored() -> None:
    """Logs a warning for each file with a wrong name, once per process, unless `TRIDAL_CONFIG` names the file."""
    if not os.environ.get(CONFIG):
        for path, reason in ignored():
            if path.name != NAME:
                _warn_once("the settings in %s are ignored: %s", path, reason)


def _project_folders() -> tuple[Path, ...]:
    """Lists the working folder, as ".", and its parents. A working folder that was removed has no parents."""
    try:
        return Path(), *Path.cwd().parents
    except FileNotFoundError:
        return (Path(),)


def _user_folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config"), "tridal")
