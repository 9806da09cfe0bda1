"""Makes torch's own softmax a tridal one, for models that don't know tridal.

The kernels of four ATen ops are replaced in torch's dispatcher, below autograd, autocast and every transform. Whatever
in torch ends in these ops is reached: `docs/pytorch.md` lists what does and what doesn't.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch

from tridal.devices import registry
from tridal.devices.types import Op
from tridal.errors import SettingsError
from tridal.pytorch import device_context as places
from tridal.pytorch import prepared as execute

VARIABLE = "TRIDAL_OVERRIDE_TORCH"

_lock = threading.RLock()
_holders: Counter[str] = Counter()
_libraries: dict[str, Any] = {}


class override_torch:
    """Has torch.softmax, torch.log_softmax and what is built on them computed by tridal, on the devices it serves.

    Acts at once and for good, or until the end of a block: `with tridal.override_torch():`. Blocks may be nested, and
    may end in any order; when the last one ends, torch is exactly as before.

    It holds for the whole process, so in all threads; the settings that say who serves a device are each thread's own.
    What tridal does not compute, torch computes as ever.
    """

    device_types: tuple[str, ...]
    """Types of the devices whose tensors are computed by tridal: those that are served where it is called."""

    def __init__(self) -> None:
        self._entered = 0
        kinds = {entry.backend.device_type for entry in registry.registered() if entry.backend is not None}
        self.device_types = tuple(sorted(kind for kind in kinds if places.served(kind)))
        self._active = True
        with _lock:
            for kind in self.device_types:
                if not _holders[kind]:
                    _libraries[kind] = _replace(kind)
                _holders[kind] += 1
        if not self.device_types:
            places.log.warning("override_torch has nothing to do: no available backend serves a device")

    def undo(self) -> None:
        """Ends it, if it has not ended yet."""
        with _lock:
            if not self._active:
                return
            self._active = False
            for kind in self.device_types:
                _holders[kind] -= 1
                if not _holders[kind]:
                    _libraries.pop(kind)._destroy()

    def __enter__(self) -> override_torch:
        if not self._active:
            raise RuntimeError("this override has ended: call tridal.override_torch() for another")
        self._entered += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered -= 1
        if not self._entered:
            self.undo()


def start_from_environment() -> None:
    """Overrides torch for good if the environment variable TRIDAL_OVERRIDE_TORCH says so.

    Raises:
        SettingsError: it says neither yes nor no.
    """
    said = os.environ.get(VARIABLE, "").strip().lower()
    if said in ("1", "true", "yes", "on"):
        override_torch()
    elif said not in ("", "0", "false", "no", "off"):
        raise SettingsError(f"environment {VARIABLE}: expected 1 or 0, found {said!r}")


def _replace(device_type: str) -> Any:
    """Registers our kernels for tensors of a device type; they are in force until the library is destroyed."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    key = str(torch._C._dispatch_key_for_device(device_type))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
        for name, kernel in _KERNELS.items():
            library.impl(name, kernel, key)
    return library


def _forward(op: Op) -> Callable[..., torch.Tensor]:
    torchs_own = getattr(torch.ops.aten, f"_{op}").out  # another op, that keeps its kernel

    def compute(input: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
        dtype = torch.float32 if half_to_float else input.dtype
        call = execute.forward(places.place_of(input.device), op, input, dim, dtype)
        if call is not None:
            return call.run(input)
        out = torch.empty(input.shape, dtype=dtype, device=input.device)
        return torchs_own(input, dim, half_to_float, out=out)  # type: ignore[no-any-return]

    return compute


def _backward(op: Op, out_name: str) -> Callable[..., torch.Tensor]:
    torchs_own = getattr(torch.ops.aten, f"_{op}_backward_data").out

    def compute(grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
        if grad.shape == output.shape:
            run = execute.backward(places.place_of(grad.device), op, grad, output, dim, input_dtype)
            if run is not None:
                return run(grad, output)
        out = torch.empty(output.shape, dtype=input_dtype, device=output.device)
        return torchs_own(grad, output, dim, input_dtype, **{out_name: out})  # type: ignore[no-any-return]

    return compute


_KERNELS = {
    "_softmax": _forward("softmax"),
    "_log_softmax": _forward("log_softmax"),
    "_softmax_backward_data": _backward("softmax", "grad_input"),
    "_log_softmax_backward_data": _backward("log_softmax", "out"),
}
