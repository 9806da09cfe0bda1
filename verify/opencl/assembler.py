"""Assembles SPIR-V to machine code of an Intel GPU with ocloc, and reads the spills of a work-item."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tridal_xpu.resources import MAX_SPILL

__all__ = ["MAX_SPILL", "program", "spilled"]

_REGISTER_BYTES = {"pvc": 64, "dg2": 32}


def program() -> str | None:
    """Returns the path of ocloc, or None if it is not installed."""
    return shutil.which("ocloc")


def spilled(spirv: bytes, device: str, options: str = "-cl-intel-128-GRF-per-thread") -> int:
    """Returns the bytes that a work-item spills: those of the spilled registers, by the 32 work-items of a thread.

    Raises:
        RuntimeError: ocloc does not assemble the kernel.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.spv").write_bytes(spirv)
        command = ["ocloc", "compile", "-file", "kernel.spv", "-spirv_input", "-device", device, "-options", options]
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    output = found.stdout + found.stderr
    if found.returncode:
        raise RuntimeError(f"ocloc does not assemble a kernel for {device}: {output}")
    return sum(int(number) for number in re.findall(r"spilled around (\d+)", output)) * _REGISTER_BYTES[device] // 32
