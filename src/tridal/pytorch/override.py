"""Replaces torch's softmax kernels with tridal's kernels, for models that call torch's functions.

The kernels of four ATen ops are replaced in torch's dispatcher, below autograd, autocast and all transforms. This
affects every torch function that calls one of these ops. `docs/pytorch.md` lists the affected functions.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch

from tridal.devices import registry, settings
from tridal.devices.lock import LOCK
from tridal.pytorch import norm_override
from tridal.pytorch.call_records import RECORDERS, record_torch
from tridal.pytorch.device_context import device_context, is_served, log
from tridal.pytorch.path.rules import DEFINED, Rules
from tridal.pytorch.path.support import why_torch
from tridal.pytorch.private import has_kernel, skip_frames

VARIABLE = "TRIDAL_OVERRIDE_TORCH"

_active: set[override_torch] = set()
_libraries: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""Libraries of kernels by device type. When no override refers to a library, its finalizer removes the kernels."""


class override_torch:
    """Makes tridal compute torch.softmax, torch.log_softmax, layer_norm, rms_norm and the functions that call them.

    A call takes effect immediately. It lasts until the process ends, or until the end of a block:
    `with tridal.override_torch():`. Blocks may be nested and may end in any order. When the last block ends, torch is
    in its original state. The override applies to all threads of the process. Each thread has its own settings, which
    select the backend. torch computes the calls that no backend computes.
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
        """Ends the override. Does nothing if it has ended."""
        with LOCK:
            _active.discard(self)
            self._kept.clear()

    def __enter__(self) -> override_torch:
        if self not in _active:
            raise RuntimeError("this override has ended: call tridal.override_torch() for another")
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
        for rules in DEFINED.values():
            if (aten := rules.op.aten) is not None:
                torch.library.impl(f"aten::{aten}", device_type, _forward(rules), lib=library)
                torch.library.impl(f"aten::{aten}_backward_data", device_type, _backward(rules), lib=library)
        for name, kernel in norm_override.KERNELS.items():
            if hasattr(torch.ops.aten, name) and not _lasting(name, device_type):
                torch.library.impl(f"aten::{name}", device_type, kernel, lib=library)
    return library


@functools.cache
def _lasting(name: str, device_type: str) -> Any:
    """Registers a kernel of a gradient that torch does not have, until the process ends. Returns its library, or None.

    torch's composite rms_norm has no kernel for its gradient, which may be computed after the override.
    """
    if not name.endswith("backward") or has_kernel(name, device_type):
        return None
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    torch.library.impl(f"aten::{name}", device_type, norm_override.KERNELS[name], lib=library)
    return library


def _forward(rules: Rules) -> Callable[..., torch.Tensor]:
    op, prepare = rules.op, rules.prepare
    torch_out = getattr(torch.ops.aten, str(op.aten)).out  # the override does not replace `.out`
    assert prepare is not None

    @skip_frames
    def compute(input: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
        dtype = torch.float32 if half_to_float else input.dtype
        arguments = op.signature.complete((input, dim, dtype))
        found = prepare(*arguments)
        if found is not None:
            return found.run(*op.signature.tensors_of(arguments))[0]  # type: ignore[no-any-return]
        if RECORDERS:
            record_torch(op.name, input, why_torch(device_context(input.device), dtype, input))
        out = torch.empty(input.shape, dtype=dtype, device=input.device)
        return torch_out(input, dim, half_to_float, out=out)  # type: ignore[no-any-return]

    return compute


def _backward(rules: Rules) -> Callable[..., torch.Tensor]:
    op, prepare = rules.op, rules.prepare_backward
    torch_out = getattr(torch.ops.aten, f"{op.aten}_backward_data").out
    out_name = "grad_input" if op.aten == "_softmax" else "out"  # ATen's two ops use different names
    assert prepare is not None

    @skip_frames
    def compute(grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
        if grad.shape == output.shape:
            found = prepare(*op.gradient_signature.complete((grad, output, dim, input_dtype)))
            if found is not None:
                return found.run(grad, output)[0]  # type: ignore[no-any-return]
        if RECORDERS:
            reason = why_torch(device_context(grad.device), input_dtype, grad, output)
            record_torch(op.gradient_signature.name, grad, reason)
        out = torch.empty(output.shape, dtype=input_dtype, device=output.device)
        return torch_out(grad, output, dim, input_dtype, **{out_name: out})  # type: ignore[no-any-return]

    return compute
