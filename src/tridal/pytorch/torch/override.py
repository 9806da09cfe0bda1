"""Replaces torch's kernels with tridal's, for models that call torch's functions.

`Op.aten` names the replaced ATen ops. Their kernels are replaced in torch's dispatcher, below autograd, autocast and
all transforms. This affects every torch function that calls one of these ops, see `docs/pytorch.md`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

import torch

from tridal.devices import registry, settings
from tridal.devices.lock import LOCK
from tridal.pytorch.device_context import is_served, log
from tridal.pytorch.path.defined import DEFINED
from tridal.pytorch.torch.private import has_kernel, skip_frames

VARIABLE = "TRIDAL_OVERRIDE_TORCH"

_active: set[override_torch] = set()
_libraries: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""Libraries of kernels by device type. When no override refers to a library, its finalizer removes the kernels."""


class override_torch:
    """Routes torch.softmax, torch.log_softmax, layer_norm, rms_norm and the functions that call them to tridal.

    The override takes effect immediately. It lasts until the process ends, or until the end of a block:
    `with tridal.override_torch():`. Blocks may be nested and may end in any order; the end of the last one restores
    torch. The override applies to all threads of the process, and the settings of each thread select its backend. torch
    computes the calls that no backend supports.

    Example:
        >>> with tridal.use(device="interpreter"), tridal.override_torch(), tridal.record_calls() as calls:
        ...     y = torch.softmax(torch.ones(2, 3), dim=-1)
        >>> print(calls[0])
        softmax of [2, 3] float32 on cpu by interpreter: whole_row
    """

    device_types: tuple[str, ...]
    """The overridden device types. These are the types that a backend serves when the override starts."""

    @skip_frames
    def __init__(self) -> None:
        self._depth = 0
        kinds = {backend.device_type for backend in registry.loaded()}
        self.device_types = tuple(sorted(kind for kind in kinds if is_served(kind)))
        with LOCK:
            self._kept = {kind: _libraries.get(kind) or _replace(kind) for kind in self.device_types}
            _libraries.update(self._kept)
            _active.add(self)
        if not self.device_types:
            log.warning("override_torch has nothing to do: %s", _why_nothing())

    @skip_frames
    def undo(self) -> None:
        """Ends the override, unless it has already ended."""
        with LOCK:
            _active.discard(self)
            self._kept.clear()

    def __enter__(self) -> override_torch:
        if self not in _active:
            raise RuntimeError("this override has ended: call tridal.override_torch() again")
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self.undo()


def start_from_environment() -> None:
    """Overrides torch for the whole process if the environment variable TRIDAL_OVERRIDE_TORCH is true.

    Raises:
        SettingsError: the value of the variable is not a boolean.
    """
    if settings.flag(VARIABLE):
        override_torch()


def _why_nothing() -> str:
    chosen = settings.current()
    device = f"no available backend serves a device type with the device {chosen.device!r} ({chosen.sources['device']})"
    interpreted = [b.name for b in registry.loaded() if b.interpreted and b.unavailable() is None]
    hint = f". TRIDAL_DEVICE={interpreted[0]} runs the kernels in Triton's interpreter, slowly" if interpreted else ""
    return f"{device}. `tridal doctor` shows why each backend is not available{hint}"


def _replace(device_type: str) -> Any:
    """Registers tridal's kernels for a device type. The kernels are active while the returned library exists."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
        for name, kernel in _kernels():
            if hasattr(torch.ops.aten, name) and not _lasting(name, kernel, device_type):
                torch.library.impl(f"aten::{name}", device_type, kernel, lib=library)
    return library


def _kernels() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields the replaced ATen ops and the functions that replace them, see `Op.aten`."""
    for op in list(DEFINED.values()):
        if op.aten is not None:
            yield from op.load("aten").items()


@functools.cache
def _lasting(name: str, kernel: Callable[..., Any], device_type: str) -> Any:
    """Registers a kernel of a gradient that torch does not have, until the process ends. Returns its library, or None.

    A composite op of torch has no kernel for its gradient, which may be computed after the override.
    """
    if not name.endswith("backward") or has_kernel(name, device_type):
        return None
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    torch.library.impl(f"aten::{name}", device_type, kernel, lib=library)
    return library
