"""Reads a YAML file strictly: plain data, the line of every key, and an error with file and line for everything odd.

PyYAML by itself keeps the last of two equal keys and forgets lines, so this walks the node graph instead. It knows no
setting by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tridal.errors import SettingsError

if TYPE_CHECKING:
    import yaml

KeyPath: TypeAlias = tuple[str, ...]


def read(path: Path, depth: int) -> tuple[object, dict[KeyPath, int]]:
    """The file's data (None if it is empty) and the line of each key, by the keys that lead to it.

    Keys are taken as they are written ("on" stays "on") in mappings down to `depth` levels; what lies deeper is a
    value, built from YAML's safe tags alone.

    Raises:
        SettingsError: for a file that cannot be read, is not UTF-8 or not YAML, or has a key twice.
    """
    import yaml

    text = _text(path)
    lines: dict[KeyPath, int] = {}
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        return (None if node is None else _data(loader, node, (), depth, path, lines)), lines
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SettingsError(f"{path}:{line}: character {error.character!r} is not allowed in YAML") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise SettingsError(f"{where}: not valid YAML: {error.problem or error.context}") from None
    except RecursionError:
        raise SettingsError(f"{path}: nested too deeply") from None


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
        return content.decode()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{path}:{line}: not UTF-8 text: {error.reason}") from None


def _data(
    loader: yaml.SafeLoader, node: yaml.Node, keys: KeyPath, depth: int, path: Path, lines: dict[KeyPath, int]
) -> object:
    import yaml

    if depth == 0 or not isinstance(node, yaml.MappingNode):
        return _value(loader, node, path)
    data: dict[str, object] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise SettingsError(f"{path}:{line}: expected a name as the key, found a {key.id}")
        name = str(key.value)
        here = (*keys, name)
        if name in data:
            raise SettingsError(
                f"{path}:{line}: {'.'.join(here)}: the key is on line {lines[here]} already; remove one"
            )
        lines[here] = line
        data[name] = _data(loader, value, here, depth - 1, path, lines)
    return data


def _value(loader: yaml.SafeLoader, node: yaml.Node, path: Path) -> object:
    try:
        return loader.construct_object(node, deep=True)
    except (ValueError, OverflowError, TypeError) as error:  # say, the date 2020-99-99
        raise SettingsError(f"{path}:{node.start_mark.line + 1}: not a valid value: {error}") from None


def scalar(text: str) -> object:
    """What a YAML file would hold had `text` been written there: "32" is a number; what is not a scalar stays text."""
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if isinstance(node, yaml.ScalarNode):
            return loader.construct_object(node)
    except (yaml.YAMLError, ValueError, OverflowError):
        pass
    return text
