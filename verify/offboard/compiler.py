"""Makes triton-ascend compile kernels to linalg IR only, because its last stage needs CANN."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

ATTEMPTS = 5
"""Number of times that triton-ascend's converter to linalg is run if a signal ends it."""


def stop_at_linalg(cache: Path) -> None:
    """Makes triton-ascend, in this process, return the linalg IR of a kernel in place of its binary.

    Args:
        cache: a folder for compiled kernels. Do not use it for other runs: its "binaries" do not run on an NPU.
    """
    from triton.backends import backends

    os.environ["TRITON_CACHE_DIR"] = str(cache)
    compiler = backends["ascend"].compiler
    add_stages = compiler.add_stages

    def add_stages_without_cann(backend: Any, stages: dict[str, Any], options: Any) -> None:
        add_stages(backend, stages, options)
        stages["ttadapter"] = repeat_after_crash(stages["ttadapter"])
        stages["npubin"] = _linalg_as_binary

    compiler.add_stages = add_stages_without_cann


def repeat_after_crash(stage: Callable[..., str]) -> Callable[..., str]:
    """Returns a compiler stage that runs again if a signal ends its process.

    triton-adapter-opt 3.2 crashes at random: 57 of 3,000 conversions of one kernel crashed, and none of 3,000 without
    address space layout randomisation. All conversions that ended gave the same linalg IR. Errors that the converter
    reports, and crashes that repeat, are raised.
    """

    def convert(module: Any, metadata: dict[str, Any]) -> str:
        for _ in range(ATTEMPTS - 1):
            try:
                return stage(module, metadata)
            except subprocess.CalledProcessError as error:
                if error.returncode >= 0:  # an exit status, not a signal
                    raise
        return stage(module, metadata)

    return convert


def _linalg_as_binary(linalg: str, metadata: dict[str, Any]) -> bytes:
    from triton.backends.ascend.compiler import _parse_linalg_metadata

    _parse_linalg_metadata(linalg, metadata)  # adds the kernel's name and other values that a launch needs
    return linalg.encode()
