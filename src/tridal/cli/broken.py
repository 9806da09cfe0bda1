"""Handling of a torch that cannot be imported. `tridal doctor` still runs, and prints the original error."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any

import tridal
from tridal.devices.entry_points import describe_error


def torch_problem() -> str | None:
    """Returns why torch cannot be imported, on one line; None if `import tridal` could import it."""
    return None if tridal._torch_error is None else describe_error(tridal._torch_error)


class _TorchBlocker(MetaPathFinder):
    """Repeats the error at every later import. A second try may crash, because torch is partly loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torch":
            raise ImportError(f"torch cannot be imported: {torch_problem()}", name=name)


if torch_problem() is not None:
    sys.meta_path.insert(0, _TorchBlocker())
