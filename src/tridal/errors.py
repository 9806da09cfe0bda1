"""Exception classes. Each is also a subclass of the builtin exceptions that it resembles."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = [
    "DTypeError", "DeviceUnavailableError", "DimensionError", "LayoutError", "NoBackendError", "PlanError",
    "PluginError", "SettingsError", "ShapeError", "StreamError", "TensorDeviceError", "TridalError",
    "UnknownDeviceError",
]  # fmt: skip
__dir__ = __all__.copy

REMOVED: dict[str, str] = {}
"""For the name of each argument that was removed: what to use instead. Modules of ops add theirs."""


def nearest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Returns a suggestion for an error message ("; did you mean 'cuda'?"), or "" if no known word is similar.

    Ignores case. Suggests up to three of the known words. `cutoff` is their minimum similarity, from 0 to 1. For the
    name of an argument that was removed, says what to use instead.
    """
    if word in REMOVED:
        return f"; it was removed: {REMOVED[word]}"
    spelling = {name.lower(): name for name in sorted(known)}
    near = difflib.get_close_matches(word.lower(), spelling, n=3, cutoff=cutoff)
    return did_you_mean([spelling[name] for name in near])


def did_you_mean(names: Sequence[str]) -> str:
    """Returns a suggestion for an error message, or "" if there are no names."""
    return f"; did you mean {' or '.join(map(repr, names))}?" if names else ""


def unexpected(function: Callable[..., object], arguments: Iterable[str]) -> TypeError:
    """The TypeError that Python raises for keyword arguments that a function does not have."""
    name = next(iter(arguments))
    suggestion = nearest(name, inspect.signature(function).parameters)
    return TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}{suggestion}")


class TridalError(Exception):
    """Base class of all errors that tridal defines. It has no `__init__`, which torch.compile could not trace."""

    fixes: Mapping[str, str] = {}
    """Arguments that avoid the error, such as `device="auto"`. The message ends with them: as arguments of a Python
    function, or as options of a command."""

    def __str__(self) -> str:
        """Returns the message for Python code."""
        return self._with_fixes("{}={!r}")

    def for_commands(self) -> str:
        """The message with options of the command line in place of arguments."""
        return self._with_fixes("--{} {}")

    def _with_fixes(self, template: str) -> str:
        fixes = " or ".join(template.format(name, value) for name, value in self.fixes.items())
        return f"{self.args[0] if self.args else ''}{fixes and f'; use {fixes}'}"


class DTypeError(TridalError, NotImplementedError, TypeError):
    """An op does not support the dtype, or a backend cannot compute it."""


class DimensionError(TridalError, IndexError):
    """`dim` is out of range for the tensor."""


class ShapeError(TridalError, RuntimeError, ValueError):
    """Tensors, or a tensor and an argument, have shapes that do not fit together."""


class TensorDeviceError(TridalError, RuntimeError):
    """The tensors of a call are on different devices."""


class LayoutError(TridalError, NotImplementedError):
    """The tensor's `layout` is not `torch.strided`. For example, the tensor is sparse."""


class StreamError(TridalError, RuntimeError, ValueError):
    """The stream does not belong to the tensor's device."""


class UnknownDeviceError(TridalError, ValueError):
    """The device name is unknown: it is neither a backend's name nor a device type."""


class DeviceUnavailableError(TridalError, RuntimeError):
    """The device was requested by name, but it is not available on this machine."""


class NoBackendError(TridalError, RuntimeError):
    """No backend serves the tensor, and the setting `fallback` is "error"."""


class PlanError(TridalError, ValueError):
    """The requested launch plan cannot be made, or a backend made an invalid one."""


class SettingsError(TridalError, ValueError):
    """A setting is unknown or has a wrong value, or the settings file is not valid."""


class PluginError(TridalError, RuntimeError):
    """A backend, an op or its plugin is broken, or its name is already in use."""
