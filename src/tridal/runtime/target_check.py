"""Checks that Triton can compile for a device. For an unknown architecture, LLVM ends the process instead of raising.

So a small kernel is compiled in a new process first. This takes a second. Triton's cache on disk keeps a success.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tridal.devices.types import Backend, DeviceProperties, Target
from tridal.errors import PlanError
from tridal.runtime.compiler import can_compile, import_triton
from tridal.runtime.plan_check import label

_PROGRAM = Path(__file__).with_name("target_program.py")
_SECONDS = 120
"""After this time, the new process counts as failed."""


def check_target(backend: Backend, device: DeviceProperties) -> None:
    """Checks that Triton can compile for a device, unless tridal's own tests compile kernels for its target.

    Backends that are not registered are not checked.

    Raises:
        PlanError: Triton cannot compile for the target of the device.
    """
    target = device.target
    tested = getattr(backend, "tested_targets", None)
    if backend.interpreted or target is None or tested is None or target in tested:
        return
    if (fault := _fault(target)) is not None:
        version = import_triton().__version__
        where = f"{target}, the target of {device.name}"
        raise PlanError(f"{label(backend)}: Triton {version} cannot compile for {where}: {fault}")


@functools.lru_cache(maxsize=64)
def _fault(target: Target) -> str | None:
    """Returns why Triton cannot compile for a target, or None if it can."""
    triton = import_triton()
    from triton.backends import backends
    from triton.runtime.cache import get_cache_manager

    if not can_compile(target):
        return f"it has no compiler for {target[0]!r} (it has compilers of {', '.join(backends)})"
    mark = hashlib.sha256(repr(("tridal", triton.__version__, target)).encode()).hexdigest()
    cache = get_cache_manager(mark)
    if cache.get_file("compiled") is not None:
        return None
    path = os.pathsep.join(filter(None, sys.path))
    try:
        subprocess.run(
            [sys.executable, str(_PROGRAM), *map(repr, target)],
            env=dict(os.environ, PYTHONPATH=path, PYTHONSAFEPATH="1", TRITON_INTERPRET="0"),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired:
        return f"a small kernel was not compiled within {_SECONDS} s"
    except subprocess.CalledProcessError as error:
        lines: list[str] = error.stderr.strip().splitlines() or [str(error)]
        return next((line for line in lines if line.startswith("LLVM ERROR")), lines[-1])
    cache.put("", "compiled", binary=False)
    return None
