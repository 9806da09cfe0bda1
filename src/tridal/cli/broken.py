"""Handling of a torch that cannot be imported. `tridal doctor` still runs, and prints the original error.

The import is tried only once: a second try starts from a partly loaded torch, so it can raise a misleading error or
crash. Every later import raises an ImportError with the message of the first one.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any

import tridal
from tridal.devices.entry_points import describe_error


def torch_problem() -> str | None:
    """Returns why torch cannot be imported, on one line; None if `import tridal` could import it."""
    error = vars(tridal).get("_torch_error")
    return None if error is None else describe_error(error)


class _TorchBlocker(MetaPathFinder):
    """Raises ImportError for every later import of torch."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torch":
            raise ImportError(f"torch cannot be imported: {torch_problem()}", name=name)


if torch_problem() is not None:
    sys.meta_path.insert(0, _TorchBlocker())
