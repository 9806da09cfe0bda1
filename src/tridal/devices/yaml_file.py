"""Strict YAML reader: yields each key of a settings file with its line and its value.

PyYAML's loader accepts duplicate keys and drops line numbers, so this module walks PyYAML's node graph. Numbers are
decimal: YAML 1.1 would read 010 as 8, 1_000 as 1000, and 1:30 as 90.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tridal.devices.setting_table import Entry, KeyPath, is_section
from tridal.errors import SettingsError


class _Loader(yaml.SafeLoader):
    """Takes text for a bool, null, a merge key or a decimal number, else for a string."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":bool", ":null", ":merge"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",  # with a point or an exponent
    re.compile(r"([-+]?(([0-9]+(?=[.eE])|(?=\.[0-9]))(\.[0-9]*)?([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN))$"),
    list("-+.0123456789"),
)


def entries(path: Path) -> Iterator[Entry]:
    """Yields the keys, the source "file:line" and the value of each setting in a YAML file.

    Keys are strings ("on" is not True). PyYAML's safe constructor makes the values. A wrong value is yielded as a
    SettingsError; so is a duplicate key.

    Raises:
        OSError: the file cannot be read.
        SettingsError: the file is not valid YAML.
    """
    try:
        node = yaml.compose(path.read_bytes(), _Loader)
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark or error.context_mark
        raise SettingsError(f"{path}:{mark.line + 1}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise SettingsError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if node is not None:
        yield from _entries(node, (), path, f"{path}:1")


def _entries(node: yaml.Node, keys: KeyPath, path: Path, source: str) -> Iterator[Entry]:
    """Yields the entries of a node, which is the value of `keys`: of a mapping of settings, those of each setting."""
    if not (is_section(keys) and isinstance(node, yaml.MappingNode)):
        try:
            yield keys, source, _construct(node)
        except Exception as error:  # of any type, for values such as `!!bool maybe` and `!!timestamp foo`
            problem = getattr(error, "problem", None) or error
            yield keys, source, SettingsError(f"{path}:{node.start_mark.line + 1}: not a valid value: {problem}")
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        line, inner = key.start_mark.line + 1, (*keys, str(key.value))
        name, source = ".".join(inner), f"{path}:{line}"
        if name in lines:
            yield keys, source, SettingsError(f"{source}: {name}: the key is on line {lines[name]} already; remove one")
        else:
            lines[name] = line
            yield from _entries(value, inner, path, source)


def parse_text(text: str, *, scalar: bool = False) -> object:
    """Parses text as YAML: "32" gives the number 32. Returns the text itself if it is not valid.

    With `scalar`, returns the text itself also if it is a list or a mapping.
    """
    try:
        node = yaml.compose(text, _Loader)
        return text if scalar and not isinstance(node, yaml.ScalarNode) else _construct(node)
    except Exception:  # of any type, as above
        return text


def _construct(node: yaml.Node | None) -> object:
    return None if node is None else yaml.constructor.SafeConstructor().construct_object(node, deep=True)
