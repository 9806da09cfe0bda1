"""The names that an op and its parameters can have."""

from __future__ import annotations

import keyword
import re

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ARGUMENTS = frozenset({
    "input", "grad", "output", "dim", "dtype", "stream", "scale", "mask", "causal", "masked_rows", "zero_masked_rows",
    "reduce", "output_mask",
})  # fmt: skip
"""Arguments of the functions of ops and of their declarations, and of the registered ops."""


def name_fault(name: str) -> str | None:
    """Returns why an op cannot have this name, or None if it can."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"name: expected lower-case letters, digits and underscores, found {name!r}"
    if keyword.iskeyword(name):
        return f"name: {name!r} is a keyword of Python, so torch.ops cannot have an op with this name"
    return None


def parameter_fault(name: str) -> str | None:
    """Returns why a parameter of an op cannot have this name, or None if it can."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        return f"parameters: expected names in lower case that are no keywords, found {name!r}"
    if name in _ARGUMENTS:
        return f"parameters: {name!r} is the name of another argument, so choose another name"
    return None
