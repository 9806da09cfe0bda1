"""Strict YAML reader: returns plain data and the line of every key. It does not know any setting.

PyYAML's loader accepts duplicate keys and drops line numbers, so this module walks PyYAML's node graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tridal.errors import SettingsError

if TYPE_CHECKING:
    import yaml

KeyPath: TypeAlias = tuple[str, ...]
_VALUE_ERRORS = (ValueError, OverflowError, TypeError, LookupError, AttributeError)
"""What PyYAML raises for values such as the date 2020-99-99, `!!bool maybe` and `!!timestamp foo`."""


def read(path: Path, depth: int, mistakes: list[SettingsError] | None = None) -> tuple[object, dict[KeyPath, int]]:
    """Returns the data of a YAML file (None if the file is empty), and the line of each key by its path of keys.

    The keys in the first `depth` levels of mappings are checked and kept as strings ("on" is not True). PyYAML's safe
    constructor makes the values below these levels.

    Raises:
        SettingsError: the file cannot be read, is not UTF-8, is not valid YAML, or has a duplicate key or a wrong
            value. If `mistakes` is given, errors of keys and values are appended to it instead.
    """
    import yaml

    lines: dict[KeyPath, int] = {}
    try:
        text = path.read_bytes().decode()
        node = yaml.compose(text, yaml.SafeLoader)
        return (None if node is None else _construct(node, (), depth, path, lines, mistakes)), lines
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{path}:{line}: not UTF-8 text: {error.reason}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SettingsError(f"{path}:{line}: character {error.character!r} is not allowed in YAML") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = f"{path}:{mark.line + 1}" if mark else str(path)
        hint = "; use spaces, not tabs" if "'\\t'" in str(error.problem) else ""
        raise SettingsError(f"{location}: not valid YAML: {error.problem or error.context}{hint}") from None
    except RecursionError:
        raise SettingsError(f"{path}: nested too deeply") from None


def _construct(
    node: yaml.Node,
    keys: KeyPath,
    depth: int,
    path: Path,
    lines: dict[KeyPath, int],
    mistakes: list[SettingsError] | None,
) -> object:
    """Converts a node to data, and records the line of each of its keys in `lines`."""
    import yaml

    if depth == 0 or not isinstance(node, yaml.MappingNode):
        try:
            return yaml.constructor.SafeConstructor().construct_object(node, deep=True)
        except _VALUE_ERRORS as error:
            raise SettingsError(f"{path}:{node.start_mark.line + 1}: not a valid value: {error}") from None
    data: dict[str, object] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        try:
            if not isinstance(key, yaml.ScalarNode):
                raise SettingsError(f"{path}:{line}: expected a name as the key, found a {key.id}")
            key_path = (*keys, str(key.value))
            if key_path in lines:
                name = ".".join(key_path)
                raise SettingsError(f"{path}:{line}: {name}: the key is on line {lines[key_path]} already; remove one")
            lines[key_path] = line
            data[key_path[-1]] = _construct(value, key_path, depth - 1, path, lines, mistakes)
        except SettingsError as error:
            if mistakes is None:
                raise
            mistakes.append(error)
    return data


def parse_scalar(text: str) -> object:
    """Parses text as a YAML scalar: "32" gives the number 32. Returns the text itself if it is not a valid scalar."""
    import yaml

    try:
        node = yaml.compose(text, yaml.SafeLoader)
        is_scalar = isinstance(node, yaml.ScalarNode)
        return yaml.constructor.SafeConstructor().construct_object(node) if is_scalar else text
    except (yaml.YAMLError, *_VALUE_ERRORS):
        return text
