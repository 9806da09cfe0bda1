"""Strict YAML reader: yields each key with its line and its value. It does not know any setting.

PyYAML's loader accepts duplicate keys and drops line numbers, so this module walks PyYAML's node graph. Numbers are
decimal: YAML 1.1 would read 010 as 8, 1_000 as 1000, and 1:30 as 90.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tridal.errors import SettingsError

if TYPE_CHECKING:
    import yaml

KeyPath: TypeAlias = tuple[str, ...]
Entry: TypeAlias = tuple[KeyPath, str, object]
"""The keys of a value, its source, and the value, or a SettingsError for a mistake in it."""
_VALUE_ERRORS = (ValueError, OverflowError, TypeError, LookupError, AttributeError)
"""What PyYAML raises for values such as `!!bool maybe` and `!!timestamp foo`."""
_MAX_BYTES = 1 << 20
_NUMBERS = {
    "int": re.compile(r"[-+]?(0|[1-9][0-9]*)$"),
    "float": re.compile(
        r"([-+]?(([0-9]+(?=[.eE])|(?=\.[0-9]))(\.[0-9]*)?([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN))$"
    ),
}
"""The numbers by YAML's tag. A float has a point or an exponent."""


def read_bytes(path: Path) -> bytes:
    """Returns the content of a file. Raises OSError also for a FIFO or a device, whose reading may never end."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a folder raises the error for folders
        raise OSError(errno.EINVAL, "it is not a regular file")
    with open(path, "rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {_MAX_BYTES} bytes")
    return content


def entries(path: Path, is_section: Callable[[KeyPath], bool], named_by: str = "") -> Iterator[Entry]:
    """Yields the keys, the source "file:line" and the value of each entry of a YAML file.

    `is_section` returns whether a path of keys is a section: if its value is a mapping, the entries of the mapping are
    yielded instead. Keys are strings ("on" is not True). PyYAML's safe constructor makes the values. A wrong value is
    yielded as a SettingsError; so is a duplicate key. The error for a file that cannot be read starts with `named_by`.

    Raises:
        SettingsError: the file cannot be read, is not UTF-8 or is not valid YAML.
    """
    import yaml

    try:
        text = read_bytes(path).decode()
        node = yaml.compose(text, _loader())
        if node is not None:
            yield from _entries(node, (), f"{path}:1", path, is_section)
    except OSError as error:
        raise SettingsError(f"{named_by}{path}: cannot be read: {error.strerror or error}") from error
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


def _entries(
    node: yaml.Node, keys: KeyPath, source: str, path: Path, is_section: Callable[[KeyPath], bool]
) -> Iterator[Entry]:
    """Yields the entries of a node, which is the value of `keys`."""
    import yaml

    if not (is_section(keys) and isinstance(node, yaml.MappingNode)):
        try:
            yield keys, source, _construct(node)
        except _VALUE_ERRORS as error:
            yield keys, source, SettingsError(f"{path}:{node.start_mark.line + 1}: not a valid value: {error}")
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        line, name = key.start_mark.line + 1, ".".join((*keys, str(key.value)))
        source = f"{path}:{line}"
        if not isinstance(key, yaml.ScalarNode):
            yield keys, source, SettingsError(f"{source}: expected a name as the key, found a {key.id}")
        elif name in lines:
            yield keys, source, SettingsError(f"{source}: {name}: the key is on line {lines[name]} already; remove one")
        else:
            lines[name] = line
            yield from _entries(value, (*keys, str(key.value)), source, path, is_section)


def parse_text(text: str, *, scalar: bool = False) -> object:
    """Parses text as YAML: "32" gives the number 32. Returns the text itself if it is not valid.

    With `scalar`, returns the text itself also if it is a list or a mapping.
    """
    import yaml

    try:
        node = yaml.compose(text, _loader())
        if scalar and not isinstance(node, yaml.ScalarNode):
            return text
        return None if node is None else _construct(node)
    except (yaml.YAMLError, *_VALUE_ERRORS):
        return text


@functools.cache
def _loader() -> type[yaml.SafeLoader]:
    """Returns a loader that takes text for a bool, null, a merge key or a decimal number, else for a string."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":bool", ":null", ":merge"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for kind, pattern in _NUMBERS.items():
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", pattern, list("-+.0123456789"))
    return Loader


def _construct(node: yaml.Node) -> object:
    import yaml

    return yaml.constructor.SafeConstructor().construct_object(node, deep=True)
