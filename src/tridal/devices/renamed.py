"""Names of version 0.1: error messages give their new names. Imports the standard library only."""

from __future__ import annotations

from typing import Any

RENAMED = {"Tile": "KernelConfig", "Algorithm": "Schedule", "algorithms": "schedules", "split": "programs_per_row"}
RENAMED |= {"algorithm": "schedule", "tile": "config", "edges": "peel", "rereads": "reload", "weighed": "scale_mask"}
"""The new name of each name of version 0.1."""
_RENAMED_VALUES = {"tile": "whole_row", "split": "cooperative", "looped": "column_loop", "masked": "scale_mask"}
"""The new names of schedules and features of version 0.1. For these, they take precedence over `RENAMED`."""


def new_name(old: str, value: bool = False) -> str:
    """Returns a hint for an error message if `old` is a name of version 0.1. Set `value` for a schedule or feature."""
    new = (RENAMED | _RENAMED_VALUES if value else RENAMED).get(old)
    return f"; {old!r} is called {new!r} since version 0.2" if new else ""


class Renamed:
    """Base class whose errors for arguments and attributes of version 0.1 give their new names."""

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Rejects arguments with the names of version 0.1."""
        for name in kwargs.keys() & RENAMED.keys():
            raise TypeError(f"{cls.__name__} has no argument {name!r}{new_name(name)}")
        return super().__new__(cls)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{new_name(name)}")
