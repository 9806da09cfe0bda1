"""Triton's targets. Imports the standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Target: TypeAlias = tuple[str, int | str | Mapping[str, Any], int]
"""Triton's target: the name of its backend, the architecture and the warp size."""


class Architecture(dict[str, Any]):
    """An architecture that is a mapping, in the order of its keys. It is hashable, so do not change it.

    It is a dict, because Triton's compilers test for one.
    """

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))


def hashable(target: Target) -> Target:
    """Returns the target with an architecture that is hashable, so that the target can be a key of caches."""
    backend, architecture, warp_size = target
    if not isinstance(architecture, Mapping):
        return target
    return backend, Architecture(sorted(architecture.items(), key=str)), warp_size
