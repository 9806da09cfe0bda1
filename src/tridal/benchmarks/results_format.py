"""The content of a results.json, and the search for faults in a file that `tridal bench` may not have written."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

from tridal.benchmarks.workloads import DIRECTIONS, SHAPE_CLASSES
from tridal.devices.plugin_data import Rule, instance_of, or_none
from tridal.devices.setting_layers import describe_value
from tridal.devices.types import ITEMSIZE

_Wanted: TypeAlias = "Rule | Mapping[str, _Wanted] | list[_Wanted]"
"""A rule for a value, an object by its keys (`_ANY_KEY` for all keys), or a list whose items are all alike."""

_ANY_KEY = "*"
_MAX_NUMBER = 1e30  # the product of two of them is finite


def _one_of(names: Collection[str]) -> Rule:
    return Rule(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names)


def _matching(expected: str, pattern: str) -> Rule:
    return Rule(expected, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


def _or_null(rule: Rule) -> Rule:
    return or_none(rule, f"{rule.expected}, or null")


_TEXT = _matching("text", r"[^\ud800-\udfff]*")  # surrogates cannot be written to a file
_NAME = _matching("a name", r"[^$\n\ud800-\udfff]+")  # "$" begins a formula in a plot
_FLAG = instance_of(bool, "true or false")
_COUNT = Rule("a positive integer", lambda value: type(value) is int and 0 < value < _MAX_NUMBER)
_NUMBER = Rule("a positive number", lambda value: type(value) in (int, float) and 0 < value < _MAX_NUMBER)
_AIM = Rule("a number of at least 0", lambda value: value == 0 or _NUMBER.accepts(value))
_LIST = Rule("a list", lambda value: isinstance(value, list))
_OBJECT = Rule("an object", lambda value: isinstance(value, dict))
_TIMES = ("ms", "ms_20", "ms_80", "gbps")
_HOST_TIMES = ("us", "us_20", "us_80")
_DOCUMENT: _Wanted = {
    "date": _TEXT,
    "interrupted": _FLAG,
    "command": _TEXT,
    "machine": {
        **dict.fromkeys(("device", "name", "python", "torch", "tridal"), _NAME),
        **dict.fromkeys(("backend", "triton"), _or_null(_NAME)),
        "interpreted": _FLAG,
    },
    "providers": {_ANY_KEY: _or_null(_NAME)},
    "op": _matching("the name of an op", r"\w+"),
    "passes": {_ANY_KEY: _COUNT},
    "aims": {_ANY_KEY: {_ANY_KEY: _AIM}},
    "measurements": [
        {
            "group": _one_of(("grid", *SHAPE_CLASSES)),
            "op": _matching("the name of an op", r"\w+"),
            "direction": _one_of(DIRECTIONS),
            "dtype": _one_of(ITEMSIZE),
            **dict.fromkeys(("shape", "provider"), _NAME),
            **dict.fromkeys(("rows", "cols"), _COUNT),
            **dict.fromkeys((*_TIMES, "share_of_copy"), _or_null(_NUMBER)),
            **dict.fromkeys(("noisy", "share_noisy"), _FLAG),
            "skipped": _or_null(_TEXT),
        }
    ],
    "host": [
        {
            "provider": _NAME,
            **dict.fromkeys(("grad", "noisy"), _FLAG),
            **dict.fromkeys(_HOST_TIMES, _or_null(_NUMBER)),
            "skipped": _or_null(_TEXT),
        }
    ],
}


def find_fault(document: Any) -> str | None:
    """Returns the first fault of the content of a results.json, or None if tables and plots can be made of it."""
    return next(_faults(document, _DOCUMENT, ""), None) or next(_contradictions(document), None)


def _faults(value: Any, wanted: _Wanted, path: str) -> Iterator[str]:
    """Yields the faults of a value at a path such as "measurements[3].ms"."""
    expected, accepts = _LIST if isinstance(wanted, list) else _OBJECT if isinstance(wanted, Mapping) else wanted
    if not accepts(value):
        yield f"{path}: expected {expected}, found {describe_value(value)}"
    elif isinstance(wanted, list):
        for index, item in enumerate(value):
            yield from _faults(item, wanted[0], f"{path}[{index}]")
    elif isinstance(wanted, Mapping):
        for key in value if _ANY_KEY in wanted else wanted:
            inner = f"{path}.{key}" if path else key
            if key not in value:
                yield f"{inner} is missing"
            elif not _NAME.accepts(key):
                yield f"{path}: expected {_NAME.expected} as each key, found {describe_value(key)}"
            else:
                yield from _faults(value[key], wanted[key if key in wanted else _ANY_KEY], inner)


def _contradictions(document: Any) -> Iterator[str]:
    """Yields the faults of values that do not fit together. Each of them alone is right."""
    for table, times in (("measurements", _TIMES), ("host", _HOST_TIMES)):
        for index, row in enumerate(document[table]):
            if len({row[column] is None for column in times}) == 2:
                yield f"{table}[{index}]: expected numbers for all of {', '.join(times)}, or null for all of them"
            if row[times[0]] is None and row.get("share_of_copy") is not None:
                yield f"{table}[{index}].share_of_copy: expected null, because there is no time"
    if not (document["measurements"] or document["host"]):
        yield "it has no measurement"
