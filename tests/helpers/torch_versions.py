"""What older versions of torch cannot do: marks that skip a test with the reason, and the messages that torch gives."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch

TORCH = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
"""(major, minor) of the installed torch."""
TRITON = tuple(map(int, import_module("triton").__version__.split(".")[:2])) if find_spec("triton") else (0, 0)
"""(major, minor) of the installed Triton, or (0, 0)."""

aot_inductor = pytest.mark.skipif(
    TORCH < (2, 13), reason="AOTInductor of this torch passes another dtype to ops with a ScalarType argument"
)

target_of_one_row = pytest.mark.skipif(
    TORCH < (2, 8), reason="cross_entropy of this torch refuses a target of shape (1,) for one row"
)
compiles_transformers = pytest.mark.skipif(
    TORCH < (2, 8), reason="torch.compile of this torch cannot trace transformers' configurations"
)
exports_globals = pytest.mark.skipif(TORCH < (2, 11), reason="torch.export of this torch refuses global tensors")


def compiles(backend: str) -> bool:
    """Returns whether the installed Triton compiles for a backend. Before 3.5, it needs ROCm's linker for AMD."""
    return backend != "rocm" or TRITON >= (3, 5)


def skip_unless_compiled(backend: str) -> None:
    """Skips a test that compiles for a backend if the installed Triton does not."""
    if not compiles(backend):
        pytest.skip("this Triton cannot compile for the backend")


averages_on_gloo = pytest.mark.skipif(
    TORCH < (2, 9), reason="FSDP2 of this torch adds gradients on gloo and does not average them"
)
ABSENT = ["torch._C._autograd._top_saved_tensors_default_hooks"] if TORCH < (2, 9) else []
"""Private items that the installed torch does not have."""


def compiled_error(message: str) -> str:
    """Returns what matches the error of a compiled function that raises `message`. torch 2.7 may hide the message."""
    return f"Observed exception|{message}" if TORCH < (2, 8) else message
