"""Strict YAML reader: returns plain data and the line of every key. Errors give the file and the line.

PyYAML's loader accepts duplicate keys and drops line numbers, so this module walks PyYAML's node graph. It does not
know any setting.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tridal.errors import SettingsError

if TYPE_CHECKING:
    import yaml

KeyPath: TypeAlias = tuple[str, ...]


def read(path: Path, depth: int) -> tuple[object, dict[KeyPath, int]]:
    """Reads a YAML file.

    Args:
        path: the file.
        depth: levels of mappings whose keys are checked and kept as strings ("on" is not True). Data below these
            levels is constructed by PyYAML's safe loader.

    Returns:
        The data (None if the file is empty), and the line of each key by its path of keys.

    Raises:
        SettingsError: the file cannot be read, is not UTF-8, is not valid YAML, or has a duplicate key.
    """
    import yaml

    text = _read_text(path)
    lines: dict[KeyPath, int] = {}
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        return (None if node is None else _construct(loader, node, (), depth, path, lines)), lines
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SettingsError(f"{path}:{line}: character {error.character!r} is not allowed in YAML") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = f"{path}:{mark.line + 1}" if mark else str(path)
        raise SettingsError(f"{location}: not valid YAML: {error.problem or error.context}") from None
    except RecursionError:
        raise SettingsError(f"{path}: nested too deeply") from None


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
        return content.decode()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{path}:{line}: not UTF-8 text: {error.reason}") from None


def _construct(
    loader: yaml.SafeLoader, node: yaml.Node, keys: KeyPath, depth: int, path: Path, lines: dict[KeyPath, int]
) -> object:
    """Converts a node to data, and records the line of each of its keys in `lines`."""
    import yaml

    if depth == 0 or not isinstance(node, yaml.MappingNode):
        return _construct_value(loader, node, path)
    data: dict[str, object] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise SettingsError(f"{path}:{line}: expected a name as the key, found a {key.id}")
        name = str(key.value)
        key_path = (*keys, name)
        if name in data:
            dotted_key, first_line = ".".join(key_path), lines[key_path]
            raise SettingsError(f"{path}:{line}: {dotted_key}: the key is on line {first_line} already; remove one")
        lines[key_path] = line
        data[name] = _construct(loader, value, key_path, depth - 1, path, lines)
    return data


def _construct_value(loader: yaml.SafeLoader, node: yaml.Node, path: Path) -> object:
    try:
        return loader.construct_object(node, deep=True)
    except (ValueError, OverflowError, TypeError) as error:  # for example, the date 2020-99-99
        raise SettingsError(f"{path}:{node.start_mark.line + 1}: not a valid value: {error}") from None


def parse_scalar(text: str) -> object:
    """Parses text as a YAML scalar: "32" gives the number 32. Returns the text itself if it is not a valid scalar."""
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if isinstance(node, yaml.ScalarNode):
            return loader.construct_object(node)
    except (yaml.YAMLError, ValueError, OverflowError):
        pass
    return text
