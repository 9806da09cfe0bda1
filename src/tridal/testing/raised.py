"""What a check reports of an exception: its type, its message, and the line that raised it."""

from __future__ import annotations

import traceback
from pathlib import Path

from tridal.devices.entry_points import describe_error
from tridal.errors import TridalError


def raised(error: Exception) -> str:
    """Returns a description of an exception, with the innermost line of code outside of torch that was running.

    The messages of tridal's own errors say what is wrong, so they have no line.
    """
    found = f"raised {describe_error(error)}"
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((frame for frame in reversed(frames) if "torch" not in Path(frame.filename).parts), None)
    if frame is None or isinstance(error, TridalError):
        return found
    return f"{found} (in {frame.name}, {frame.filename}:{frame.lineno})"
