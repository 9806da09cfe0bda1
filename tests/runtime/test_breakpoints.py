"""A `breakpoint()` in a kernel: it is found before the kernel is compiled, and the error gives its line."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import tridal
from call_helpers import WHOLE_ROW, kernel_call
from tridal import library
from tridal.devices.types import ITEMSIZE, KernelConfig
from tridal.errors import PluginError
from tridal.ops import planning, table
from tridal.runtime import breakpoints, compiler

pytest.importorskip("triton")

COMPILED = sorted(name for name, (_, p) in planning.architectures().items() if p.target is not None and p.registers)
SOURCE = """
import triton


@triton.jit
def called(x):
    y = x + 1
    {statement}
    return y


@triton.jit
def caller(x):
    return called(x)


@triton.jit
def recursive(x):
    return recursive(x)
"""


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    """A module of kernels, with the given statement in line 8."""
    name = "kernels_of_a_test_" + request.param.rstrip("()")
    (tmp_path / f"{name}.py").write_text(SOURCE.format(statement=request.param + "()"))
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(name)


@pytest.mark.parametrize("kernels", ["breakpoint"], indirect=True)
def test_breakpoint_is_found_in_a_function_and_in_its_callers(kernels: ModuleType) -> None:
    expected = f"{kernels.__file__}:8"
    assert breakpoints.find_breakpoint(kernels.called) == expected
    assert breakpoints.find_breakpoint(None, kernels.recursive, kernels.caller) == expected
    assert breakpoints.find_breakpoint(kernels.recursive) is None


@pytest.mark.parametrize("kernels", ["print"], indirect=True)
def test_other_calls_are_no_breakpoints(kernels: ModuleType) -> None:
    assert breakpoints.find_breakpoint(kernels.caller) is None


@pytest.mark.parametrize("op", [op for op in library.OPS if op.one_tensor], ids=lambda op: op.name)
def test_kernels_of_tridal_have_none(op: table.Op) -> None:
    for kernel in (op.forward, op.backward):
        for config in (WHOLE_ROW, KernelConfig("column_loop", 1, 256)):
            function = compiler.entry(kernel_call(kernel=kernel).specialize(config))
            assert breakpoints.find_breakpoint(function) is None


def test_functions_of_an_op_and_of_the_schedules_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[str] = []
    original = inspect.unwrap
    monkeypatch.setattr(
        inspect, "unwrap", lambda f, **stop: reached.append(getattr(f, "__name__", "")) or original(f, **stop)
    )
    call = kernel_call(kernel=library.OPS[0].forward)
    breakpoints.find_breakpoint(compiler.entry(call.specialize(WHOLE_ROW)))
    assert {"softmax", "exp_term", "whole_row", "finite"} <= set(reached)


def test_compiling_a_kernel_with_a_breakpoint_raises_an_error_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "find_breakpoint", lambda *functions: "kernels.py:8")
    compiler.compile_kernel.cache_clear()
    compiler.resources.cache_clear()
    with pytest.raises(PluginError, match=r"^kernels.py:8: Triton cannot compile breakpoint\(\): remove it, or run"):
        tridal.plan(7, 13, arch=COMPILED[0], dtype=next(iter(ITEMSIZE)))
