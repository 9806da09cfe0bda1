"""The data that plugins return: objects of the protocol's own types, and a rule for the value of each field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from tridal.devices.problem import Architecture
from tridal.devices.types import MAX_PROGRAMS, DeviceProperties, KernelConfig, LaunchPlan, Resources

_MAX_STAGES = 32
"""The time of Triton's compiler grows with the number of stages."""
_MAX_EXP2_BIAS = 1e-5
"""A larger error of exp2 is not a rounding error of float32."""


class Rule(NamedTuple):
    """The accepted values of a field, of a member of a backend or of a method's result."""

    expected: str
    """The accepted values in words, for an error message."""
    accepts: Callable[[Any], bool]
    """accepts(value) returns whether a value is accepted."""


def instance_of(kind: type, expected: str) -> Rule:
    """Accepts values of exactly this type."""
    return Rule(expected, lambda value: type(value) is kind)


def integer(first: int, last: int, expected: str = "") -> Rule:
    """Accepts integers from `first` to `last`. A bool and a numpy number are no integers."""
    return Rule(
        expected or f"an integer from {first} to {last}", lambda value: type(value) is int and first <= value <= last
    )


def or_none(rule: Rule) -> Rule:
    """Accepts None, too."""
    return Rule(f"{rule.expected} or None", lambda value: value is None or rule.accepts(value))


def _is_target(value: Any) -> bool:
    if type(value) is not tuple or len(value) != 3:
        return False
    name, architecture, warp_size = value
    names = [name, *(architecture if isinstance(architecture, Mapping) else ())]
    right = type(architecture) in (int, str, Architecture) and all(type(name) is str for name in names)
    return right and type(warp_size) is int and warp_size >= 0


_POSITIVE = Rule("a positive integer", lambda value: type(value) is int and value > 0)
_NOT_NEGATIVE = Rule("an integer of at least 0", lambda value: type(value) is int and value >= 0)
_POWER_OF_2 = Rule("a power of two", lambda value: _POSITIVE.accepts(value) and not value & (value - 1))
_BY_TYPE: Mapping[Any, Rule] = {
    "bool": instance_of(bool, "True or False"),
    "int": _POSITIVE,
    "int | None": or_none(_POSITIVE),
    "str": Rule("text", lambda value: type(value) is str and bool(value)),
}
"""The rules of fields by their annotation."""
_BY_NAME: Mapping[type, Mapping[str, Rule]] = {
    KernelConfig: {
        **dict.fromkeys(("rows", "cols", "num_warps", "lanes"), _POWER_OF_2),
        "rest_cols": Rule(
            "0 or a power of two", lambda value: _NOT_NEGATIVE.accepts(value) and not value & (value - 1)
        ),
        "num_stages": integer(1, _MAX_STAGES),
        "exp2_bias": or_none(
            Rule(
                f"a float from -{_MAX_EXP2_BIAS} to {_MAX_EXP2_BIAS}",
                lambda value: type(value) is float and abs(value) <= _MAX_EXP2_BIAS,  # false for NaN
            )
        ),
    },
    LaunchPlan: {
        "config": instance_of(KernelConfig, "a KernelConfig"),
        "programs": or_none(integer(1, MAX_PROGRAMS)),
        "reason": instance_of(str, "text"),
        "compilations": _NOT_NEGATIVE,
        "resources": or_none(instance_of(Resources, "Resources")),
    },
    Resources: dict.fromkeys(("registers", "spills", "shared_memory"), _NOT_NEGATIVE),
    DeviceProperties: {
        "target": or_none(Rule("(backend, architecture, warp size)", _is_target)),
        "aliases": Rule(
            "a tuple of texts", lambda value: type(value) is tuple and all(type(part) is str for part in value)
        ),
    },
}
"""The rules of fields whose annotation does not say enough."""
_RULES: Mapping[type, Mapping[str, Rule]] = {
    kind: {field.name: _BY_TYPE[field.type] for field in fields(kind) if field.type in _BY_TYPE} | dict(rules)
    for kind, rules in _BY_NAME.items()
}


def wrong_fields(data: Any) -> Iterator[tuple[str, Any, str]]:
    """Yields the name, the value, and the accepted values in words, of each wrong field of an object."""
    for name, rule in _RULES[type(data)].items():
        if not rule.accepts(value := getattr(data, name)):
            yield name, value, rule.expected


def rebuilt(found: Any) -> Any:
    """Makes objects of the protocol's own types from the fields of a plugin's data. A mapping becomes a dict.

    An object of a subclass equals no object of its class, and has fields and methods that tridal does not know.
    """
    kind = next((kind for kind in _RULES if isinstance(found, kind)), None)
    if kind is not None:
        return kind(**{field.name: rebuilt(getattr(found, field.name)) for field in fields(kind)})
    return {key: rebuilt(value) for key, value in found.items()} if isinstance(found, Mapping) else found
