"""The interpreter and the compiler work in one process, in any order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

PREAMBLE = """
import torch, tridal
def interpret(cols):
    x = torch.randn(5, cols)
    with tridal.use(device="interpreter", fallback="error"):
        assert torch.allclose(tridal.softmax(x), torch.softmax(x, -1))
def compile(dtype):
    assert tridal.plan(64, 100, dtype=dtype, arch=ARCH).resources.registers > 0
ARCH = next(name for name, (_, p) in tridal.ops.planning.architectures().items() if p.target and p.registers)
"""


def run(script: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a new process with an empty cache of kernels. An empty variable is removed."""
    variables = {**os.environ, "TRITON_CACHE_DIR": str(cache), **environment}
    variables = {name: value for name, value in variables.items() if value}
    return subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("flag", ["", "1"])
def test_interpreting_first_and_compiling_in_between_works(tmp_path: Path, flag: str) -> None:
    order = 'interpret(7); compile("float32"); interpret(9); compile("float16"); interpret(7)'
    result = run(PREAMBLE + order, tmp_path, TRITON_INTERPRET=flag)
    assert result.returncode == 0, result.stderr


def test_compiling_first_works(tmp_path: Path) -> None:
    result = run(PREAMBLE + 'compile("float32"); interpret(7); compile("bfloat16")', tmp_path)
    assert result.returncode == 0, result.stderr


def test_compiling_raises_if_triton_was_imported_for_the_interpreter(tmp_path: Path) -> None:
    script = "import triton, triton.language\n" + PREAMBLE + 'interpret(7); print("interpreted"); compile("float32")'
    result = run(script, tmp_path, TRITON_INTERPRET="1")
    assert result.returncode != 0
    assert "unset the variable" in result.stderr
    assert result.stdout == "interpreted\n", "the interpreter works with a library that Triton decorated for it"
