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
COUNTERS = ("conformance cases", "kernels executed", "kernels assembled")

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


@pytest.fixture
def count(record_property):
    """count("kernels executed", 12) adds 12 to a counter that the terminal summary shows."""

    def add(counter: str, number: int) -> None:
        assert counter in COUNTERS
        record_property(counter, number)

    return add


def pytest_terminal_summary(terminalreporter) -> None:
    """Prints the totals of the counters of all test processes, and the largest error of each op and dtype."""
    totals: dict[str, int] = dict.fromkeys(COUNTERS, 0)
    shares: dict[str, list[float]] = {}
    for report in terminalreporter.getreports(""):
        if report.when == "teardown":  # its properties are complete
            for name, value in report.user_properties:
                if name in totals:
                    totals[name] += value
                elif name == "share of the bound":
                    shares.setdefault(value[0], []).append(value[1])
    if any(totals.values()):
        terminalreporter.section("Intel GPUs without a GPU")
        for name, number in totals.items():
            terminalreporter.line(f"{number} {name}")
        for kind, found in sorted(shares.items()):
            terminalreporter.line(f"{kind}: {len(found)} cases, largest error {max(found):.2f} of its bound")
        terminalreporter.line("Compiled by triton-xpu, assembled by ocloc, executed on a CPU. Not run on an Intel GPU.")
