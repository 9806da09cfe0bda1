"""Keeps the command line working if torch cannot be imported, so that `tridal doctor` can report the error."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any

import tridal
from tridal.devices.entry_points import describe_error


def torch_problem() -> str | None:
    """Returns the error of importing torch as one line, or None if torch was imported."""
    return None if tridal._torch_error is None else describe_error(tridal._torch_error)


class _TorchBlocker(MetaPathFinder):
    """Makes every later `import torch` raise the first error. A second attempt may crash, as torch is partly loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torch":
            raise ImportError(f"torch cannot be imported: {torch_problem()}", name=name)


if torch_problem() is not None:
    sys.meta_path.insert(0, _TorchBlocker())
