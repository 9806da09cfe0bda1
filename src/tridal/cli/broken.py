"""Keeps the command line working if torch cannot be imported, so that `tridal doctor` can report the error."""

from __future__ import annotations

import sys

import tridal
from tridal.devices.entry_points import describe_error


def torch_problem() -> str | None:
    """Returns the error of importing torch as one line, or None if torch was imported."""
    return None if tridal._torch_error is None else f"torch cannot be imported: {describe_error(tridal._torch_error)}"


if torch_problem() is not None:
    sys.modules["torch"] = None  # type: ignore[assignment]  # a second import may crash, as torch is partly loaded
