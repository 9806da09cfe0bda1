"""Stops triton-ascend where the vendor's own compiler would take over: a kernel is compiled to its linalg IR."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def stop_at_linalg(cache: Path) -> None:
    """From now on and in this process, triton-ascend's last stage hands the linalg IR on, where it would call CANN.

    Triton keeps what it compiles in `cache`, a folder for nothing else: on a board, such a kernel would not be one.
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

    _parse_linalg_metadata(linalg, metadata)  # adds the name, the mode and the like, which a launch needs
    return linalg.encode()
