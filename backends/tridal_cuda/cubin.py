"""Registers and spills of a compiled kernel. Triton's cuobjdump reads them from the cubin, without a GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from tridal.devices.types import Resources


def read_resources(cubin: bytes, shared_memory: int) -> Resources:
    """Returns the resources of a cubin, as `cuobjdump -res-usage` prints them. The compiler spills to the stack.

    Args:
        cubin: the compiled kernel.
        shared_memory: bytes of shared memory per program, which Triton knows and the cubin does not.

    Raises:
        RuntimeError: cuobjdump cannot read the cubin. The message contains cuobjdump's output.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        result = subprocess.run([_cuobjdump(), "-res-usage", file.name], capture_output=True, text=True, check=False)
    usage = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", result.stdout))
    if "REG" not in usage:
        raise RuntimeError(f"cuobjdump reports no registers: {(result.stdout + result.stderr).strip()}")
    return Resources(
        registers=int(usage["REG"]),
        spills=int(usage.get("STACK", 0)) + int(usage.get("LOCAL", 0)),
        shared_memory=shared_memory,
    )


def _cuobjdump() -> Path:
    import triton

    return Path(triton.__file__).with_name("backends") / "nvidia" / "bin" / "cuobjdump"
