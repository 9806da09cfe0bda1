"""What a person can get wrong, one small class each. Every error is also the builtin that people would catch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """ "; did you mean 'cuda'?" when a known word is near, else "" - to be appended to a message. Case is ignored."""
    spelling = {name.lower(): name for name in sorted(known)}
    near = difflib.get_close_matches(word.lower(), spelling, n=3, cutoff=cutoff)
    return f"; did you mean {' or '.join(repr(spelling[name]) for name in near)}?" if near else ""


class TridalError(Exception):
    """Base of all errors that tridal raises on purpose."""


class DTypeError(TridalError, NotImplementedError, TypeError):
    """A dtype that softmax has no meaning for, or that a backend cannot compute."""


class DimensionError(TridalError, IndexError):
    """A `dim` outside the tensor's dimensions."""


class LayoutError(TridalError, NotImplementedError):
    """A tensor that is not an ordinary strided one, for example a sparse one."""


class StreamError(TridalError, RuntimeError, ValueError):
    """A stream that does not belong to the tensor's device."""


class UnknownDeviceError(TridalError, ValueError):
    """A device name that no backend has."""


class DeviceUnavailableError(TridalError, RuntimeError):
    """A device that was asked for by name and is not there."""


class NoBackendError(TridalError, RuntimeError):
    """No backend serves a tensor and the settings forbid falling back to torch."""


class PlanError(TridalError, ValueError):
    """A launch plan was asked for that cannot be made."""


class SettingsError(TridalError, ValueError):
    """A setting, from wherever it came, that cannot be used."""


class PluginError(TridalError, RuntimeError):
    """A backend plugin that cannot be used."""
