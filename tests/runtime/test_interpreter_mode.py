"""The interpreter and the compiler work in one process, in any order."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

import tridal
from call_helpers import kernel_call
from processes import python
from tridal.devices import registry
from tridal.devices.lock import LOCK
from tridal.devices.types import KernelConfig
from tridal.runtime import compiler
from tridal.runtime.compiler import import_triton
from tridal.runtime.interpreter_mode import interpreting

pytest.importorskip("triton")
triton = import_triton()
tl = triton.language
from triton.runtime import interpreter  # noqa: E402

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
    """Runs a script in a new process with an empty cache of kernels."""
    return python("-c", script, code=None, TRITON_CACHE_DIR=str(cache), **environment)


def test_interpreting_and_compiling_in_turns_works(tmp_path: Path) -> None:
    order = 'interpret(7); compile("float32"); interpret(9)'
    result = run(PREAMBLE + order, tmp_path, TRITON_INTERPRET="1")  # the variable is overridden
    assert result.returncode == 0, result.stderr


def test_compiling_raises_if_triton_was_imported_for_the_interpreter(tmp_path: Path) -> None:
    script = "import triton, triton.language\n" + PREAMBLE + 'interpret(7); print("interpreted"); compile("float32")'
    result = run(script, tmp_path, TRITON_INTERPRET="1")
    assert result.returncode != 0
    assert "unset the variable" in result.stderr
    assert result.stdout == "interpreted\n", "the interpreter works with a library that Triton decorated for it"


def test_whole_files_are_rewritten_as_triton_rewrites_each_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other versions of Triton may lack the members that this needs. Then Triton rewrites each function."""
    lanes = KernelConfig("column_loop", 1, 64, 1, lanes=4)
    specialization, loaded = kernel_call((5, 64)).specialize(lanes), []
    for whole in (True, False):
        monkeypatch.setattr(compiler, "can_load_interpreted", lambda whole=whole: whole)
        compiler._entry.cache_clear()
        entry = compiler.entry(specialization, interpret=True)
        found = [f for f in entry.fn.__globals__.values() if isinstance(f, interpreter.InterpretedFunction)]
        assert (entry in found) == whole, "otherwise, the twin has a copy of its globals"
        code = {f.rewrite().__code__ for f in (entry, *found)}
        loaded.append({(c.co_name, c.co_firstlineno, c.co_filename, c.co_names, str(c.co_consts)) for c in code})
        x = torch.linspace(-2, 2, 5 * 61).view(5, 61)
        registry.invalidate()
        with tridal.use(device="interpreter", fallback="error"):
            torch.testing.assert_close(tridal.softmax(x), torch.softmax(x, -1))
    compiler._entry.cache_clear()
    assert loaded[1] <= loaded[0]  # the globals of a twin have twins of the functions that it calls only
    assert {name for name, *_ in loaded[1]} == {"column_loop", "merge_lanes", "reduce_lanes", "split_lanes"}


def test_interpreting_restores_triton_after_an_error() -> None:
    owners = [tl, tl.core, tl.math, tl.standard, tl.tensor, type(interpreter.interpreter_builder), interpreter]
    before, options = [dict(vars(owner)) for owner in owners], interpreter.interpreter_builder.options
    with pytest.raises(KeyError, match="in the context"), LOCK, interpreting(triton):  # noqa: PT012
        assert [dict(vars(owner)) for owner in owners] != before
        assert not interpreter.interpreter_builder.options.sanitize_overflow
        raise KeyError("in the context")
    assert [dict(vars(owner)) for owner in owners] == before
    assert interpreter.interpreter_builder.options is options
