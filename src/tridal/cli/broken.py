"""A torch that can't be imported is tried once: a second try half-loads it, and may tell something else or crash."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any

import tridal
from tridal.devices.plugins import words


def reason() -> str | None:
    """Why torch can't be imported, in words; None if it is there."""
    error = vars(tridal).get("_broken")
    return None if error is None else words(error)


class _Refusal(MetaPathFinder):
    """Answers every further import of torch with what the first one raised."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torch":
            raise ImportError(f"torch can't be imported: {reason()}", name=name)


if reason() is not None:
    sys.meta_path.insert(0, _Refusal())
