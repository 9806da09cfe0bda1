"""The report of `tridal.kernelize`: which modules are replaced, which are not, and why."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tridal.models import replacements

_WRAPPER = textwrap.TextWrapper(
    width=78, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
)
"""Breaks the lines of a report as text."""


@dataclass(frozen=True)
class Entry:
    """One module that tridal may compute."""

    name: str
    """The module's name in the model, as in `named_modules`. The model itself has the name ""."""
    class_name: str
    replaced_by: str | None
    """The function of tridal and its arguments, or None if the module is left unchanged."""
    reason: str | None
    """Why the module is left unchanged, or for which inputs it computes itself. None if there is nothing to say."""


@dataclass(eq=False, repr=False)
class Report:
    """What `tridal.kernelize` did with a model. As a context manager, it restores the model at the end of the block."""

    model: str
    """The name of the model's class."""
    entries: tuple[Entry, ...]
    notes: tuple[str, ...]
    """What concerns the whole model, for example that no backend serves its device."""
    _replaced: list[torch.nn.Module]

    @property
    def replaced(self) -> tuple[Entry, ...]:
        """The modules that were replaced."""
        return tuple(entry for entry in self.entries if entry.replaced_by is not None)

    @property
    def unchanged(self) -> tuple[Entry, ...]:
        """The modules that were left unchanged. Each has a reason."""
        return tuple(entry for entry in self.entries if entry.replaced_by is None)

    def restore(self) -> None:
        """Makes the replaced modules compute as before. Does nothing the second time."""
        for module in self._replaced:
            replacements.restore(module)
        self._replaced.clear()

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as lists, dictionaries and texts, for example for JSON."""
        entries = [asdict(entry) for entry in self.entries]
        return {"model": self.model, "entries": entries, "notes": list(self.notes)}

    def __str__(self) -> str:
        lines = [f"{self.model}: {len(self.replaced)} modules replaced, {len(self.unchanged)} left unchanged"]
        groups: dict[tuple[str, str | None, str | None], list[str]] = {}
        for entry in self.entries:
            groups.setdefault((entry.class_name, entry.replaced_by, entry.reason), []).append(entry.name or "the model")
        for (class_name, by, reason), names in groups.items():
            shown = f"{names[0]} and {len(names) - 1} more" if len(names) > 2 else ", ".join(names)
            text = f"{class_name} ({shown}): {by or 'left unchanged'}" + (f"; {reason}" if reason else "")
            lines += _WRAPPER.wrap(text)
        return "\n".join((*lines, *(line for note in self.notes for line in _WRAPPER.wrap(note))))

    __repr__ = __str__
