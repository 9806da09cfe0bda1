"""What the backends of accelerators share: a base class for devices of torch. It names no device."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tridal.devices.types import BackendBase

_EMPTY_CONTEXT = nullcontext()


class TorchBackend(BackendBase):
    """Base class of backends whose devices are those of the module `torch.<device type>`."""

    private = "torch._C"
    """The module with the private function for the current stream."""
    stream_handle = ""
    """The attribute of torch's stream with its raw handle; by default, that with the name of the device type."""
    _raw_stream: str

    def __init_subclass__(cls) -> None:
        cls._raw_stream = f"_{cls.device_type}_getCurrentRawStream"
        cls.stream_handle = cls.stream_handle or f"{cls.device_type}_stream"

    def module(self) -> Any:
        """`torch.<device type>`, which a vendor's package registers when it is imported, or None."""
        import torch

        return getattr(torch, self.device_type, None)

    def device_count(self) -> int:
        """Counts the devices that torch sees."""
        return int(self.module().device_count())

    def stream(self, index: int) -> int:
        """Asks torch for the raw handle of its current stream, by a private function that creates no Stream object."""
        try:
            return getattr(sys.modules[self.private], self._raw_stream)(index)  # type: ignore[no-any-return]
        except (AttributeError, KeyError):  # this version of torch lacks the private function
            return int(getattr(self.module().current_stream(index), self.stream_handle))

    def guard(self, index: int) -> AbstractContextManager[Any]:
        """Enters torch's device guard, unless the device is already the current one."""
        module = getattr(sys.modules["torch"], self.device_type)  # faster than an import, and every call uses the guard
        return _EMPTY_CONTEXT if module.current_device() == index else module.device(index)


def triton_has(backend: str) -> bool | None:
    """Tells whether the installed triton has a backend. None stands for no triton."""
    spec = importlib.util.find_spec("triton")
    folders = (spec and spec.submodule_search_locations) or ()
    return None if spec is None else any(Path(folder, "backends", backend).is_dir() for folder in folders)
