"""Registers and spills of a compiled kernel, read from its cubin by the cuobjdump that Triton brings, without a GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from tridal.devices.types import Resources


def read_resources(cubin: bytes, shared_memory: int) -> Resources:
    """What `cuobjdump -res-usage` says of a cubin; the stack is where the compiler spills to.

    Raises RuntimeError with cuobjdump's own words if it can't read the cubin.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        printed = subprocess.run([_cuobjdump(), "-res-usage", file.name], capture_output=True, text=True, check=False)
    usage = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", printed.stdout))
    if "REG" not in usage:
        raise RuntimeError(f"cuobjdump reports no registers: {(printed.stdout + printed.stderr).strip()}")
    return Resources(
        registers=int(usage["REG"]),
        spills=int(usage.get("STACK", 0)) + int(usage.get("LOCAL", 0)),
        shared_memory=shared_memory,
    )


def _cuobjdump() -> Path:
    import triton

    return Path(triton.__file__).with_name("backends") / "nvidia" / "bin" / "cuobjdump"
