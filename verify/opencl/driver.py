"""The driver through which Intel's Triton launches kernels. It executes them on the CPU."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

from opencl import native

launches: list[tuple[str, int, int]] = []
"""The name, the programs and the work-items of a program of each launch so far."""
built: dict[bytes, native.Kernel] = {}
"""The kernels that were built, by their SPIR-V."""


class Utilities:
    """Functions that query the device and load a kernel, with the interface of triton-xpu's driver."""

    def get_device_properties(self, index: int) -> dict[str, int]:
        """Returns the limits that Triton checks."""
        return {"max_shared_mem": 131_072, "max_work_group_size": 1024}

    def load_binary(
        self, name: str, binary: bytes, shared: int, build_flags: str, index: int
    ) -> tuple[None, native.Kernel, int, int]:
        """Builds a kernel's SPIR-V. The second result is the kernel."""
        if binary not in built:
            built[binary] = native.Kernel(name, binary)
        return None, built[binary], 0, 0


class Launcher:
    """Executes a kernel. Has the same interface as triton-xpu's launcher."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self._types = list(source.signature.values())

    def __call__(
        self, x: int, y: int, z: int, stream: int, function: native.Kernel, packed: Any, launch_metadata: Any,
        enter: Any, leave: Any, *arguments: Any,
    ) -> None:  # fmt: skip
        """Executes all programs of the grid, which has one dim."""
        assert y == z == 1
        work_items = packed.num_warps * packed.threads_per_warp
        launches.append((function.name, x, work_items))
        given = [(kind, value) for kind, value in zip(self._types, arguments, strict=True) if kind != "constexpr"]
        values = [value if isinstance(value, (int, float)) else value.data_ptr() for _, value in given]
        function(x, work_items, packed.shared, [kind for kind, _ in given], values)


class Driver(DriverBase):  # type: ignore[misc]
    """Triton's driver for the CPU in place of an Intel GPU."""

    def __init__(self, target: GPUTarget) -> None:
        self.utils, self.launcher_cls, self._target = Utilities(), Launcher, target

    @classmethod
    def is_active(cls) -> bool:
        """Always true."""
        return True

    def get_current_target(self) -> GPUTarget:
        """Returns the compile target."""
        return self._target

    def get_current_device(self) -> int:
        """Returns the index of the only device."""
        return 0

    def get_current_stream(self, index: int | None = None) -> int:
        """Returns the handle of the only stream."""
        return 0

    def get_active_torch_device(self) -> Any:
        """Always raises NotImplementedError."""
        raise NotImplementedError("the tensors are on the CPU")

    def get_benchmarker(self) -> Any:
        """Always raises NotImplementedError."""
        raise NotImplementedError("the run time on a CPU is not a GPU's")


def install(target: GPUTarget, cache: Path) -> None:
    """Makes Triton compile for a target and execute on the CPU, in this process.

    The compiler asks SYCL for the name of the architecture. Without SYCL, it gets an empty name, as for an unknown GPU.
    """
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    parser = SimpleNamespace(parse_device_arch=lambda architecture: "")
    backends["intel"].compiler.__init__.__globals__["compile_module_from_src"] = lambda *given, **named: parser
    driver.set_active(Driver(target))
