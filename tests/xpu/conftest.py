"""Set-up of the tests of the Intel backend without a GPU. `make test-xpu` creates the environment that they need.

The tests are collected only if Intel's OpenCL runtime for CPUs and triton-xpu are installed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

VERIFY = Path(__file__).parents[2] / "verify"


def _is_ready() -> bool:
    triton = importlib.util.find_spec("triton")
    folders = () if triton is None else triton.submodule_search_locations or ()
    return (
        any(Path(folder, "backends", "intel").is_dir() for folder in folders)
        and Path(sys.prefix, "lib", "libintelocl.so").exists()
    )


NAME = "xpuoncpu"
READY = _is_ready()
collect_ignore_glob = [] if READY else ["test_*.py"]

if READY:
    sys.path.insert(0, str(VERIFY))


def pytest_configure(config: pytest.Config) -> None:
    """Registers a backend for CPU tensors with the plans and the compiler of a Data Center GPU Max."""
    if not READY:
        return
    from triton.backends.compiler import GPUTarget

    import tridal
    from opencl import driver
    from tridal_xpu import ARCHITECTURES, Xpu

    device = ARCHITECTURES["pvc"]
    folder = tempfile.TemporaryDirectory(prefix="opencl-")  # a new one, so that every run compiles with triton-xpu
    config.add_cleanup(folder.cleanup)
    assert device.target is not None
    driver.install(GPUTarget(*device.target), Path(os.environ.get("OPENCL_CACHE", folder.name)))

    class XpuOnCpu(Xpu):
        """Plans and compiles as the backend `xpu` does, for CPU tensors. torch allows no such backend of this name."""

        name = NAME
        device_type = "cpu"

        def unavailable(self) -> None:
            return None

        def device_count(self) -> int:
            return 1

        def properties(self, index: int) -> Any:
            return device

        def stream(self, index: int) -> int:
            return 0

        def guard(self, index: int) -> Any:
            return nullcontext()

    tridal.registry.register(XpuOnCpu())


def pytest_terminal_summary(terminalreporter) -> None:
    """Says how the kernels ran."""
    if READY:
        terminalreporter.section("Intel GPUs without a GPU")
        terminalreporter.line("Compiled by triton-xpu, assembled by ocloc, executed on a CPU. Not run on an Intel GPU.")
