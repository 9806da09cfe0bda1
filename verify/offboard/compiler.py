"""Makes triton-ascend compile kernels to linalg IR only, because its last stage needs CANN."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


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
        stages["npubin"] = _linalg_as_binary

    compiler.add_stages = add_stages_without_cann


def _linalg_as_binary(linalg: str, metadata: dict[str, Any]) -> bytes:
    from triton.backends.ascend.compiler import _parse_linalg_metadata

    _parse_linalg_metadata(linalg, metadata)  # adds the kernel's name and other values that a launch needs
    return linalg.encode()
