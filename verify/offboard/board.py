"""The driver through which triton-ascend launches, with this machine's processor for a board."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

from offboard import device, native

PROGRAM_LIMIT = 65_536


@dataclass(frozen=True, slots=True)
class Launch:
    """What was launched: which kernel, how many programs, where."""

    kernel: str
    programs: int
    stream: int
    device: int


launches: list[Launch] = []
"""All launches so far."""
_loaded: list[tuple[native.Kernel, int]] = []


class Utilities:
    """What triton-ascend asks of a board."""

    def get_device_properties(self, index: int) -> dict[str, int]:
        """As the real driver has it: it knows no limit of shared memory."""
        cores = device.VECTOR_CORES
        return {"max_shared_mem": 1, "num_aicore": cores // 2, "num_vectorcore": cores}

    def load_binary(self, name: str, binary: bytes, shared: int, index: int) -> tuple[None, int, int, int]:
        """Builds a kernel; the handle belongs to the device that is current."""
        if index != device.current_device():
            raise RuntimeError(f"{name} is loaded for npu:{index} while npu:{device.current_device()} is current")
        _loaded.append((native.kernel(binary.decode()), index))
        return None, len(_loaded) - 1, 0, 0


class Launcher:
    """Runs a kernel as triton-ascend's own launcher would have a board do."""

    def __init__(self, source: Any, metadata: Any) -> None:
        pass

    def __call__(
        self, x: int, y: int, z: int, stream: int, function: int, packed: dict[str, Any],
        launch_metadata: Any, enter: Any, leave: Any, *arguments: Any,
    ) -> None:  # fmt: skip
        """Raises RuntimeError where a board would fail or do something undefined."""
        kernel, owner = _loaded[function]
        current = device.current_device()
        if owner != current:
            raise RuntimeError(f"{kernel.name} was loaded on npu:{owner} and is launched on npu:{current}")
        if device.owners.get(stream) != current:
            raise RuntimeError(f"stream {stream:#x} does not belong to npu:{current}")
        if x * y * z >= PROGRAM_LIMIT:
            raise RuntimeError(f"{x * y * z} programs: a launch takes fewer than {PROGRAM_LIMIT}")
        launches.append(Launch(kernel.name, x * y * z, stream, current))
        words = [each if isinstance(each, (int, float)) else each.data_ptr() for each in arguments]
        kernel((x, y, z), words)


class Board(DriverBase):  # type: ignore[misc]
    """An NPU for triton-ascend."""

    def __init__(self) -> None:
        self.utils, self.launcher_cls = Utilities(), Launcher

    @classmethod
    def is_active(cls) -> bool:
        """It always is."""
        return True

    def get_current_target(self) -> GPUTarget:
        """What is compiled for."""
        return GPUTarget("npu", device.NAME, 0)

    def get_current_device(self) -> int:
        """Index of the current device."""
        return device.current_device()

    def get_current_stream(self, index: int | None = None) -> int:
        """Handle of a device's current stream."""
        return device.current_stream(index).npu_stream

    def get_benchmarker(self) -> Any:
        """There is nothing to measure."""
        raise NotImplementedError("a processor's time says nothing about a board's")


def install() -> None:
    """Makes it the driver that triton-ascend uses in this process."""
    driver.set_active(Board())
