"""Stand-ins for a device: its torch module and Triton's driver. They record calls and need no hardware."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from tridal.devices.types import Target
from tridal.runtime import compiler, launch
from tridal.runtime.interpreter_mode import with_item
from tridal.runtime.specialization import Specialization

COUNT = 2
"""The number of devices of a `RecordingDevice`."""
_HANDLES = "_stream", "_queue", "_handle"
"""The ends of the names of a stream's handle, such as `npu_stream`, `sycl_queue` and `native_handle`."""
_FUNCTION = 0xF00D  # the handle of every kernel


class RecordedLaunch(NamedTuple):
    """The stream of a launch, and the device that was current."""

    stream: int
    device: int


class RecordingDevice:
    """Stands in for the module `torch.<device type>`. Attributes that it does not have are those of the real module."""

    def __init__(self, real: Any = None) -> None:
        self.current = 0
        self.streams = {index: 0x1000 * (index + 1) for index in range(COUNT)}
        """The handle of the current stream of each device."""
        self.launches: list[RecordedLaunch] = []
        self.error: Exception | None = None
        """The exception that launches raise."""
        self._real = real
        self.is_available, self.device_count = lambda: True, lambda: COUNT
        self.current_device = lambda: self.current

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def set_device(self, device: Any) -> None:
        """Makes a device the current one."""
        self.current = _index(device)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """Makes a device the current one in a context."""
        before, self.current = self.current, _index(device)
        try:
            yield
        finally:
            self.current = before

    def current_stream(self, device: Any = None) -> _Stream:
        """The current stream of a device, by default of the current device."""
        return _Stream(self.streams[self.current if device is None else _index(device)])

    def launch(self, *arguments: Any) -> None:
        """Records a launch, with the arguments of Triton's launcher."""
        if self.error is not None:
            raise self.error
        self.launches.append(RecordedLaunch(arguments[3], self.current))


class _Stream:
    """A stream. Each attribute whose name ends as those of torch's streams is its handle."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __getattr__(self, name: str) -> int:
        if name.endswith(_HANDLES):
            return self._handle
        ends = ", ".join(f"'{end}'" for end in _HANDLES)
        raise AttributeError(f"the stand-in for a stream has no {name!r}: its handle is any name that ends with {ends}")


@contextmanager
def recording(device_type: str, target: Target, modules: Sequence[str] = ()) -> Iterator[RecordingDevice]:
    """Replaces `torch.<device type>`, other modules by name, and Triton's driver until the context ends.

    `target` is the target of the driver's device. If Triton has no compiler for it, no kernel is compiled. No other
    thread may compute meanwhile.
    """
    triton = compiler.import_triton()
    device = RecordingDevice(getattr(torch, device_type, None))

    class Launcher:
        def __init__(self, *_: Any) -> None:
            self.launch = device.launch

        def __call__(self, *arguments: Any) -> None:
            self.launch(*arguments)

    def load(specialization: Specialization, target: Target, index: int) -> Any:
        source = SimpleNamespace(fn=None, signature=dict(specialization.types))
        made: Any = SimpleNamespace(src=source, metadata=None, packed_metadata=())
        if compiler.can_compile(target):
            made = compiler.compile_kernel(specialization, target)
        known = {name: getattr(made, name) for name in ("src", "metadata", "packed_metadata")}
        return SimpleNamespace(**known, function=_FUNCTION, run=Launcher())

    active = SimpleNamespace(get_current_device=device.current_device, launcher_cls=Launcher)
    active.get_current_target = lambda: SimpleNamespace(backend=target[0], arch=target[1], warp_size=target[2])
    raw_stream = f"_{device_type}_getCurrentRawStream"
    with ExitStack() as stack:
        enter = stack.enter_context
        for name in (f"torch.{device_type}", *modules):
            enter(with_item(sys.modules, name, device))
            parent, _, attribute = name.rpartition(".")
            if parent in sys.modules:
                enter(patch.object(sys.modules[parent], attribute, device, create=True))
        for package in ("torch", f"torch_{device_type}"):
            owner = sys.modules.get(f"{package}._C")
            if hasattr(owner, raw_stream):  # a private function that returns a handle without making a Stream
                enter(patch.object(owner, raw_stream, device.streams.__getitem__))
        enter(patch.object(triton.runtime, "driver", SimpleNamespace(active=active)))
        enter(patch.object(launch, "_load", load))
        yield device


def _index(device: Any) -> int:
    return device if isinstance(device, int) else torch.device(device).index or 0
