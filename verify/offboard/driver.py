"""The driver through which triton-ascend launches kernels. It executes them on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

from offboard import device, native

PROGRAM_LIMIT = 65_536
"""A launch must have fewer programs than this."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A record of one launch."""

    kernel: str
    programs: int
    stream: int
    """Handle of the stream."""
    device: int
    """Index of the device."""


launches: list[Launch] = []
"""All launches so far."""
_loaded: list[tuple[native.Kernel, int]] = []
"""Each loaded kernel and the index of its device. The position in the list is the kernel's handle."""


class Utilities:
    """Functions that query a device and load a kernel, with the interface of triton-ascend's driver."""

    def get_device_properties(self, index: int) -> dict[str, int]:
        """Returns the same properties as triton-ascend's driver. `max_shared_mem` is not a real limit."""
        cores = device.VECTOR_CORES
        return {"max_shared_mem": 1, "num_aicore": cores // 2, "num_vectorcore": cores}

    def load_binary(self, name: str, binary: bytes, shared: int, index: int) -> tuple[None, int, int, int]:
        """Compiles a kernel's linalg IR for the current device. The second result is the kernel's handle.

        Raises:
            RuntimeError: device `index` is not the current device.
        """
        if index != device.current_device():
            raise RuntimeError(f"{name} is loaded for npu:{index}, but npu:{device.current_device()} is current")
        _loaded.append((native.kernel(binary.decode()), index))
        return None, len(_loaded) - 1, 0, 0


class Launcher:
    """Executes a kernel. Has the same interface as triton-ascend's launcher."""

    def __init__(self, source: Any, metadata: Any) -> None:
        pass

    def __call__(
        self, x: int, y: int, z: int, stream: int, function: int, packed: dict[str, Any],
        launch_metadata: Any, enter: Any, leave: Any, *arguments: Any,
    ) -> None:  # fmt: skip
        """Executes all programs of the grid.

        Raises:
            RuntimeError: the launch would fail on an NPU, or its behavior would be undefined.
        """
        kernel, owner = _loaded[function]
        current = device.current_device()
        if owner != current:
            raise RuntimeError(f"{kernel.name} was loaded on npu:{owner}, but is launched on npu:{current}")
        if device.stream_devices.get(stream) != current:
            raise RuntimeError(f"stream {stream:#x} does not belong to npu:{current}")
        if x * y * z >= PROGRAM_LIMIT:
            raise RuntimeError(f"{x * y * z} programs: a launch must have fewer than {PROGRAM_LIMIT}")
        launches.append(Launch(kernel.name, x * y * z, stream, current))
        values = [value if isinstance(value, (int, float)) else value.data_ptr() for value in arguments]
        kernel((x, y, z), values)
        if device.written_outside():
            raise RuntimeError(f"{kernel.name} wrote outside of its tensors")


class Driver(DriverBase):  # type: ignore[misc]
    """Triton's driver for the emulated NPUs."""

    def __init__(self) -> None:
        self.utils, self.launcher_cls = Utilities(), Launcher

    @classmethod
    def is_active(cls) -> bool:
        """Always true."""
        return True

    def get_current_target(self) -> GPUTarget:
        """Returns the compile target."""
        return GPUTarget("npu", device.NAME, 0)

    def get_current_device(self) -> int:
        """Returns the index of the current device."""
        return device.current_device()

    def get_current_stream(self, index: int | None = None) -> int:
        """Returns the handle of a device's current stream."""
        return device.current_stream(index).npu_stream

    def get_benchmarker(self) -> Any:
        """Always raises NotImplementedError."""
        raise NotImplementedError("the emulated device cannot be benchmarked: the run time on a CPU is not an NPU's")


def install() -> None:
    """Makes triton-ascend use this driver in this process."""
    driver.set_active(Driver())
